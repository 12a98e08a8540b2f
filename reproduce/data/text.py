"""Text for masked language modelling (`reproduce.data.corpus`), as bytes.

A token is a byte of the UTF-8, and a sequence T neighbouring bytes; what is left at the end of a text is dropped.

Masking is BERT's (Devlin et al. 2019), dynamic as RoBERTa's (Liu et al. 2019): each byte is a target with probability
15 %, and is then hidden behind the token `MASK` (80 %), replaced by a byte drawn uniformly (10 %), or left (10 %). What
becomes of a byte is a hash of its sequence's hash and its position, so it does not depend on who draws it, or when. In
validation it is the same for all seeds, epochs and methods.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from petra_core.models.revroberta import IGNORED
from reproduce.data.crops import Integers
from reproduce.data.loader import Batch, Source
from reproduce.data.sample_hash import Hashes, chain

VALUES = 256  # of a byte
MASK = VALUES  # the token that hides a byte
FRACTION = 0.15  # of the bytes are targets
HIDDEN, REPLACED = 0.8, 0.1  # of the targets


class Text(Source):
    """The sequences of a text, each of `length` (T) bytes, masked by their hashes."""

    num_classes = VALUES

    def __init__(self, content: bytes, length: int, device: torch.device) -> None:
        self.samples = len(content) // length
        whole = np.frombuffer(content, np.uint8)[: self.samples * length]
        self._sequences = torch.from_numpy(whole.reshape(self.samples, length).copy()).to(device)

    def batches(self, samples: Integers, hashes: Hashes, batch_size: int) -> Iterator[Batch]:
        inputs, targets = masked(self._sequences[torch.from_numpy(samples).to(self._sequences.device)], hashes)
        for at in range(0, len(samples), batch_size):
            yield inputs[at : at + batch_size], targets[at : at + batch_size]


def masked(tokens: Tensor, hashes: Hashes) -> Batch:
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


def unigram(train: bytes, hidden: Integers) -> dict[str, float]:
    """What a predictor reaches that knows the frequencies of bytes, each value counted once too often, and no more.

    Returns:
        `accuracy` of always guessing the most frequent byte of `train` where the bytes `hidden` [M] are to be found,
        percent; `bits_per_byte` of the frequencies.

    """
    counts = np.bincount(np.frombuffer(train, np.uint8), minlength=VALUES) + 1  # what never came has a probability too
    bits = -np.log2(counts / counts.sum())
    return {
        "accuracy": 100 * float((hidden == counts.argmax()).mean()),
        "bits_per_byte": math.fsum(bits[hidden].tolist()) / len(hidden),
    }
