"""Text for masked language modelling (`reproduce.data.corpus`), as bytes.

A token is a byte of the UTF-8, and a sequence T neighbouring bytes; what is left at the end of a text is dropped.

Masking is BERT's (Devlin et al. 2019), dynamic as RoBERTa's (Liu et al. 2019): each byte is a target with probability
15 %, and is then hidden behind the token `MASK` (80 %), replaced by a byte drawn uniformly (10 %), or left (10 %). What
becomes of a byte is a hash of (seed, epoch, sequence, position), so it does not depend on who draws it, or when. In
validation it is the same for all seeds, epochs and methods.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from petra_core.models.revroberta import IGNORED
from reproduce.data.loader import batch_numbers
from reproduce.data.sample_hash import AUGMENTATION, EVALUATION, Hashes, chain, sample_hashes, sample_order

__all__ = [
    "FRACTION",
    "IGNORED",
    "MASK",
    "TextEvaluation",
    "TextLoader",
    "Unigram",
    "masked",
    "unigram",
]

VALUES = 256  # of a byte
MASK = VALUES  # the token that hides a byte
FRACTION = 0.15  # of the bytes are targets
HIDDEN, REPLACED = 0.8, 0.1  # of the targets


class Unigram(NamedTuple):
    """What a predictor reaches that knows how frequent each byte is, and nothing of its neighbours.

    Attributes:
        accuracy: of always guessing the most frequent byte, percent.
        bits_per_byte: of the frequencies.

    """

    accuracy: float
    bits_per_byte: float


def sequences(content: bytes, length: int) -> Tensor:
    """N bytes -> uint8 [N // length, length]."""
    count = len(content) // length
    return torch.from_numpy(np.frombuffer(content, np.uint8)[: count * length].reshape(count, length).copy())


def masked(tokens: Tensor, hashes: Hashes) -> tuple[Tensor, Tensor]:
    """What a model reads, and what it is to find.

    Args:
        tokens: bytes, uint8 [N, T].
        hashes: one of each sequence, [N].

    Returns:
        Inputs int64 [N, T], 0 … `MASK`; targets int64 [N, T], the byte itself or `IGNORED`.

    """
    drawn = chain(hashes[:, None], np.arange(tokens.shape[1], dtype=np.uint64))  # [N, T]
    place = torch.from_numpy((drawn >> np.uint64(32)).astype(np.float64) / 2**32).to(tokens.device)  # in [0, 1)
    replacement = torch.from_numpy((drawn % np.uint64(VALUES)).astype(np.int64)).to(tokens.device)
    true = tokens.long()
    targets = torch.where(place < FRACTION, true, IGNORED)
    inputs = torch.where(place < FRACTION * (HIDDEN + REPLACED), replacement, true)
    return torch.where(place < FRACTION * HIDDEN, MASK, inputs), targets


class TextLoader:
    """Shuffled sequences to train on, masked anew in every epoch; an epoch's last, incomplete batch is left out.

    Args:
        content: the text.
        length: T, bytes of a sequence.
        batch_size: sequences of a batch.
        seed: of order and masking.
        device: where batches are to lie.

    Raises:
        ValueError: there are fewer sequences than a batch has.

    """

    name = "memory"
    num_classes = VALUES

    def __init__(self, content: bytes, length: int, batch_size: int, *, seed: int, device: torch.device) -> None:
        self._sequences = sequences(content, length).to(device)
        self.samples, self.batch_size = len(self._sequences), batch_size
        self.batches = self.samples // batch_size
        if self.batches == 0:
            raise ValueError(
                f"batch_size {batch_size} is larger than this training set ({self.samples} sequences of {length} bytes)"
            )
        self._seed = seed

    def epoch(self, epoch: int, start: int = 0, step: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """See `Loader`; tokens int64 [B, T] and targets int64 [B, T]."""
        order = torch.from_numpy(sample_order(self._seed, epoch, self.samples)).to(self._sequences.device)
        inputs, targets = masked(self._sequences, sample_hashes(self._seed, epoch, AUGMENTATION, self.samples))
        for batch in batch_numbers(self.batches, start, step):
            chosen = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            yield inputs[chosen], targets[chosen]

    def close(self) -> None:
        """Nothing is held but memory."""


class TextEvaluation:
    """All sequences of a text in order, masked in one way once and for all; the last batch may be smaller.

    Args:
        content: the text.
        length: T, bytes of a sequence.
        batch_size: sequences of a batch.
        device: where batches are to lie.

    Attributes:
        samples: targets that are not `IGNORED`.

    Raises:
        ValueError: the text is shorter than a sequence.

    """

    def __init__(self, content: bytes, length: int, batch_size: int, device: torch.device) -> None:
        tokens = sequences(content, length).to(device)
        if not len(tokens):
            raise ValueError(f"sequences of {length} bytes are longer than the text for validation ({len(content)})")
        self._inputs, self._targets = masked(tokens, sample_hashes(0, 0, EVALUATION, len(tokens)))
        self._batch_size = batch_size
        self.samples = int((self._targets != IGNORED).sum())

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        inputs, targets = (torch.split(whole, self._batch_size) for whole in (self._inputs, self._targets))
        yield from zip(inputs, targets, strict=True)

    def close(self) -> None:
        """There is nothing to give back."""

    def hidden(self) -> NDArray[np.int64]:
        """The bytes that are to be found, [samples]."""
        found: NDArray[np.int64] = self._targets[self._targets != IGNORED].cpu().numpy()
        return found


def unigram(train: bytes, hidden: NDArray[np.int64]) -> Unigram:
    """How well bytes are predicted by their frequencies in the training text alone, each value counted once too often.

    Args:
        train: the training text.
        hidden: what is to be predicted, [M].

    """
    found = np.bincount(np.frombuffer(train, np.uint8), minlength=VALUES)
    counts = found + 1  # so that a byte that never came has a probability
    bits = -np.log2(counts / counts.sum())
    return Unigram(
        accuracy=100 * float((hidden == counts.argmax()).mean()),
        bits_per_byte=math.fsum(bits[hidden].tolist()) / len(hidden),
    )
