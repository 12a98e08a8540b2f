"""Derive random numbers from a hash of (seed, epoch, purpose, sample index).

The numbers of a generator depend on the order of the calls. With two workers, with another loader, or after a resume in
the middle of an epoch, the same sample would be augmented differently. A generator seeded with seed + epoch is even
worse, because seed 1 epoch 1 equals seed 2 epoch 0. A hash gives the same number to every caller in any order.

The hash is SplitMix64 (Steele, Lea and Flood 2014), chained: each value is added to the state and the state is mixed.
`mix` and `chain` only use arithmetic on unsigned 64-bit integers, so they work on numpy arrays and on scalars that
Numba compiles.
"""

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

INCREMENT = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
FACTOR_2 = np.uint64(0x94D049BB133111EB)
SHIFT_1, SHIFT_2, SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)

#: Purposes of a random number. Numbers for different purposes are independent.
ORDER, AUGMENTATION, INITIALISATION, DROPOUT, EVALUATION, HELD_OUT = range(6)


def mix(z: Hashes) -> Hashes:
    """Apply SplitMix64's output function, a bijection in which every input bit affects every output bit."""
    z = (z ^ (z >> SHIFT_1)) * FACTOR_1
    z = (z ^ (z >> SHIFT_2)) * FACTOR_2
    return z ^ (z >> SHIFT_3)


def chain(state: Hashes, value: Hashes) -> Hashes:
    """Return the hash state after adding `value`. Any initial state is valid."""
    return mix((state ^ mix(value + INCREMENT)) + INCREMENT)


def key(*values: int) -> Hashes:
    """Return the hash state after several non-negative integers, shape [1].

    Raises:
        ValueError: If an integer is negative or above 2^64 - 1.

    """
    state = np.zeros(1, dtype=np.uint64)
    for value in values:
        if not 0 <= value < 2**64:
            raise ValueError(f"hashed values are integers in 0..2^64 - 1, got {value}")
        state = chain(state, np.array([value], dtype=np.uint64))
    return state


def sample_hashes(seed: int, epoch: int, purpose: int, samples: int) -> Hashes:
    """Return one hash for each sample index 0 … samples - 1, shape [samples]."""
    return chain(key(seed, epoch, purpose), np.arange(samples, dtype=np.uint64))


def sample_order(seed: int, epoch: int, samples: int, purpose: int = ORDER) -> NDArray[np.int64]:
    """Return the order of an epoch: a permutation of the sample indices, shape [samples]."""
    return np.argsort(sample_hashes(seed, epoch, purpose, samples), kind="stable")


def derive_seed(seed: int, purpose: int, *which: int) -> int:
    """Derive a seed in 0 … 2^63 - 1 for a generator of another library, from `seed`, `purpose` and further indices."""
    return int(key(seed, purpose, *which)[0]) >> 1
