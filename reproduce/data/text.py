"""Serve text for masked language modelling (`reproduce.data.corpus`), tokenised as bytes.

A token is a byte of the UTF-8 encoding, and a sequence consists of T consecutive bytes. An incomplete sequence at the
end of a text is dropped.

Masking is BERT's (Devlin et al. 2019), dynamic as in RoBERTa (Liu et al. 2019). Each byte is a target with probability
15 %. A target is replaced by the token `MASK` (80 %), replaced by a uniformly drawn byte (10 %), or kept (10 %). The
choice is a hash of the sequence's hash and the position, so it does not depend on the order in which sequences are
read. Validation uses the same masks for all seeds, epochs and methods.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from reproduce.data.crops import Integers
from reproduce.data.loader import Batch, Source
from reproduce.data.sample_hash import Hashes, chain
from reproduce.models.revroberta import IGNORED

VALUES = 256  # possible values of a byte
MASK = VALUES  # token that masks a byte
FRACTION = 0.15  # fraction of the bytes that are targets
HIDDEN, REPLACED = 0.8, 0.1  # fractions of the targets that are masked and replaced


class Text(Source):
    """Sequences of a text, each of `length` (T) bytes, masked according to their hashes."""

    num_classes = VALUES

    def __init__(self, content: bytes, length: int, device: torch.device) -> None:
        self.samples = len(content) // length
        whole = np.frombuffer(content, np.uint8)[: self.samples * length]
        self._sequences = torch.from_numpy(whole.reshape(self.samples, length).copy()).to(device)

    def batches(self, samples: Integers, hashes: Hashes, batch_size: int) -> Iterator[Batch]:
        inputs, targets = mask_tokens(self._sequences[torch.from_numpy(samples).to(self._sequences.device)], hashes)
        for at in range(0, len(samples), batch_size):
            yield inputs[at : at + batch_size], targets[at : at + batch_size]


def mask_tokens(tokens: Tensor, hashes: Hashes) -> Batch:
    """Mask sequences.

    Args:
        tokens: Bytes, uint8 [N, T].
        hashes: One hash per sequence, [N].

    Returns:
        Inputs of the model, int64 [N, T] in 0 … `MASK`, and targets, int64 [N, T]: the true byte or `IGNORED`.

    """
    drawn = chain(hashes[:, None], np.arange(tokens.shape[1], dtype=np.uint64))  # [N, T]
    place = torch.from_numpy((drawn >> np.uint64(32)).astype(np.float64) / 2**32).to(tokens.device)  # in [0, 1)
    replacement = torch.from_numpy((drawn % np.uint64(VALUES)).astype(np.int64)).to(tokens.device)
    true = tokens.long()
    targets = torch.where(place < FRACTION, true, IGNORED)
    inputs = torch.where(place < FRACTION * (HIDDEN + REPLACED), replacement, true)
    return torch.where(place < FRACTION * HIDDEN, MASK, inputs), targets


def unigram(train: bytes, hidden: Integers) -> dict[str, float]:
    """Evaluate the unigram baseline, a predictor that only knows the frequencies of bytes.

    Args:
        train: Text from which the frequencies are counted, with add-one smoothing.
        hidden: Bytes to predict, [M].

    Returns:
        `accuracy`: Accuracy in percent of always predicting the most frequent byte.
        `bits_per_byte`: Cross-entropy of the frequencies.

    """
    counts = np.bincount(np.frombuffer(train, np.uint8), minlength=VALUES) + 1  # unseen bytes need a probability too
    bits = -np.log2(counts / counts.sum())
    return {
        "accuracy": 100 * float((hidden == counts.argmax()).mean()),
        "bits_per_byte": math.fsum(bits[hidden].tolist()) / len(hidden),
    }
