"""Loader and hash: batches are functions of (seed, epoch, position) and of nothing else."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from reproduce.data import loader, sample_hash
from reproduce.data.loader import EvaluationBatches, Images, MemoryLoader
from reproduce.data.sample_hash import AUGMENTATION, ORDER, derived_seed, sample_hashes, sample_order

SIZE = 6


def images(samples=20):
    """Every pixel names its place: image n has n in channel 0, the row in channel 1, the column in channel 2."""
    pixels = torch.zeros(samples, 3, SIZE, SIZE, dtype=torch.uint8)
    pixels[:, 0] = torch.arange(samples, dtype=torch.uint8)[:, None, None]
    pixels[:, 1] = torch.arange(1, SIZE + 1, dtype=torch.uint8)[:, None]
    pixels[:, 2] = torch.arange(1, SIZE + 1, dtype=torch.uint8)
    labels = torch.arange(samples) % 10
    return Images(pixels, labels, 10, (0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255))  # normalised pixels are the bytes


def epoch(loader, number, start=0):
    return [(x.clone(), y.clone()) for x, y in loader.epoch(number, start)]


def equal(one, other):
    return len(one) == len(other) and all(
        torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("batch_size", [1, 3, 5, 20])
def test_an_epoch_is_a_shuffle_without_the_incomplete_batch(batch_size):
    loader = MemoryLoader(images(), batch_size, seed=0)
    batches = epoch(loader, 0)
    assert len(batches) == loader.batches == 20 // batch_size
    assert all(x.shape == (batch_size, 3, SIZE, SIZE) and x.dtype == torch.float32 for x, _ in batches)
    numbers = torch.cat([x[:, 0, 0, 0] for x, _ in batches]).round().long()
    assert len(set(numbers.tolist())) == len(numbers) == loader.batches * batch_size
    assert torch.equal(numbers % 10, torch.cat([y for _, y in batches]))
    assert numbers.tolist() != sorted(numbers.tolist()) or batch_size == 20


@pytest.mark.parametrize("flip_crop", [False, True])
@pytest.mark.parametrize("start", [0, 1, 3, 6])
def test_from_the_middle_of_an_epoch_come_the_same_batches(flip_crop, start):
    whole = epoch(MemoryLoader(images(), 3, seed=5, flip_crop=flip_crop), 2)
    rest = epoch(MemoryLoader(images(), 3, seed=5, flip_crop=flip_crop), 2, start)
    assert equal(whole[start:], rest)


def test_augmentation_takes_no_second_copy_of_the_data_set():
    """It was padded once for all, on the device: of ImageNet32 6 GB beside 4."""
    whole = images(200)
    largest = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            largest.append(result.nbytes if isinstance(result, torch.Tensor) else 0)
            return result

    with Sizes():
        next(MemoryLoader(whole, 2, seed=5, flip_crop=True).epoch(0))
    assert max(largest) < whole.pixels.nbytes / 2


@pytest.mark.parametrize(("step", "each"), [(1, 6), (2, 3), (4, 1), (7, 0)])
def test_several_readers_share_an_epoch(step, each):
    loader = MemoryLoader(images(), 3, seed=5, flip_crop=True)
    whole = epoch(loader, 2)
    for reader in range(step):
        own = list(loader.epoch(2, reader, step))
        assert len(own) == each
        assert equal(own, whole[reader::step][:each])
        assert equal(list(loader.epoch(2, reader + step, step)), own[1:]), "from its second batch on"


@pytest.mark.parametrize("flip_crop", [False, True])
def test_a_batch_does_not_depend_on_what_was_read_before(flip_crop):
    fresh = epoch(MemoryLoader(images(), 4, seed=1, flip_crop=flip_crop), 3)
    used = MemoryLoader(images(), 4, seed=1, flip_crop=flip_crop)
    torch.manual_seed(0)
    for number in (0, 3, 1):
        next(used.epoch(number))
    assert equal(fresh, epoch(used, 3))


def test_two_epochs_may_be_read_at_once():
    loader = MemoryLoader(images(), 4, seed=1, flip_crop=True)
    expected = epoch(loader, 0), epoch(loader, 1)
    first, second = loader.epoch(0), loader.epoch(1)
    mixed = [(next(first), next(second)) for _ in range(loader.batches)]
    assert equal([a for a, _ in mixed], expected[0])
    assert equal([b for _, b in mixed], expected[1])


def test_seeds_and_epochs_are_independent():
    """FFCV and many loops seed with seed + epoch: seed 1 epoch 1 is then seed 2 epoch 0."""
    orders = [tuple(sample_order(seed, number, 50)) for seed in range(8) for number in range(8)]
    assert len(set(orders)) == len(orders)
    hashes = np.concatenate([sample_hashes(s, e, p, 50) for s in range(4) for e in range(4) for p in range(2)])
    assert len(np.unique(hashes)) == len(hashes)


def test_an_order_is_a_fair_permutation():
    orders = np.stack([sample_order(7, number, 10) for number in range(4000)])
    assert (np.sort(orders, axis=1) == np.arange(10)).all()
    counts = np.stack([np.bincount(orders[:, place], minlength=10) for place in range(10)])
    # 4000 draws of 10: 400 +- 19; five deviations.
    assert abs(counts - 400).max() < 95


def test_the_bits_of_the_hash_are_fair_and_change_with_every_input_bit():
    hashes = sample_hashes(0, 0, AUGMENTATION, 40_000)
    bits = (hashes[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert abs(bits.mean(axis=0) - 0.5).max() < 0.0125  # five deviations of 0.0025
    for other in (sample_hashes(1, 0, AUGMENTATION, 40_000), sample_hashes(0, 1, AUGMENTATION, 40_000)):
        changed = np.unpackbits((hashes ^ other).view(np.uint8)).reshape(-1, 64).sum(axis=1)
        assert abs(changed.mean() - 32) < 0.1  # five deviations of 4 / sqrt(40000)


def test_the_hash_is_splitmix64():
    """The published first outputs of SplitMix64 with seed 1234567 (its state grows by the increment before each)."""
    states = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * sample_hash.INCREMENT
    assert sample_hash.mix(states).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_the_hash_is_fixed_for_ever():
    """Recorded results are results of these orders."""
    assert sample_order(0, 0, 8).tolist() == [2, 0, 4, 5, 3, 1, 7, 6]
    assert sample_hashes(1, 2, ORDER, 2).tolist() == [7514956018966487631, 11926612683539703642]
    assert derived_seed(3, sample_hash.INITIALISATION) == 4155285821718478473


@pytest.mark.parametrize("value", [-1, 2**64])
def test_seeds_out_of_range_are_refused(value):
    with pytest.raises(ValueError, match=r"integers in 0..2\^64 - 1"):
        sample_order(value, 0, 4)


def test_a_crop_is_a_window_of_the_padded_image_mirrored_half_the_time():
    data = images(200)
    padded = torch.nn.functional.pad(data.pixels.float(), (4, 4, 4, 4))
    places, flips = set(), 0
    for number in range(3):
        order = sample_order(0, number, 200)
        hashes = sample_hashes(0, number, AUGMENTATION, 200)
        [(x, _)] = epoch(MemoryLoader(data, 200, seed=0, flip_crop=True), number)
        for crop, sample in zip(x.round(), order, strict=True):
            bits = int(hashes[sample])
            flip, top, left = bits & 1, (bits >> 8) % 2**24 % 9, (bits >> 32) % 2**24 % 9
            window = padded[sample, :, top : top + SIZE, left : left + SIZE]
            assert torch.equal(crop, window.flip(2) if flip else window)
            places.add((top, left))
            flips += flip
    assert len(places) == 81  # 600 draws of 81 places: all of them but with probability 0.05; the seed is fixed
    assert abs(flips - 300) < 62  # five deviations


def test_normalisation_gives_mean_0_and_deviation_1():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (50, 3, 8, 8), dtype=torch.uint8, generator=generator)
    values = pixels.double() / 255
    mean, deviation = values.mean((0, 2, 3)), values.std((0, 2, 3), correction=0)
    data = Images(pixels, torch.zeros(50, dtype=torch.int64), 1, tuple(mean.tolist()), tuple(deviation.tolist()))
    x = data.normalised(pixels)
    assert x.mean((0, 2, 3)).abs().max() < 1e-5
    assert (x.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("batch_size", [7, 20, 64])
def test_evaluation_reads_everything_in_order(batch_size):
    data = images()
    batches = list(EvaluationBatches(data, batch_size))
    assert torch.equal(torch.cat([y for _, y in batches]), data.labels)
    assert torch.equal(torch.cat([x for x, _ in batches]).round().to(torch.uint8), data.pixels)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="batch_size 21 is larger than the data set \\(20 samples\\)"):
        MemoryLoader(images(), 21, seed=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pixels": torch.zeros(4, 3, 8, 8)}, "pixels are uint8"),
        ({"pixels": torch.zeros(4, 1, 8, 8, dtype=torch.uint8)}, "got torch.uint8 \\(4, 1, 8, 8\\)"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "labels are int64 \\[4\\]"),
        ({"labels": torch.tensor([0, 1, 2, 10])}, "labels are 0..9, got 0..10"),
        ({"labels": torch.tensor([-1, 1, 2, 3])}, "labels are 0..9, got -1..3"),
    ],
)
def test_wrong_images_are_refused(change, message):
    good = {"pixels": torch.zeros(4, 3, 8, 8, dtype=torch.uint8), "labels": torch.zeros(4, dtype=torch.int64)}
    with pytest.raises(ValueError, match=message):
        Images(**good | change, num_classes=10, mean=(0.0,) * 3, deviation=(1.0,) * 3)


def test_a_gpu_divides_as_a_cpu_does():
    """By a number of Python's a GPU does not divide, it multiplies by the inverse, which rounds otherwise."""
    divisors = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket is torch.ops.aten.div:
                divisors.append(args[1])
            return func(*args, **(kwargs or {}))

    every = torch.arange(256, dtype=torch.uint8).expand(3, 1, -1)
    with Watch():
        found = loader.normalised(every, (0.5, 0.4, 0.3), (0.25, 0.2, 0.1))
    assert len(divisors) == 2
    assert all(divisor.dim() == 3 for divisor in divisors), "a divisor without dimensions may be a number"
    expected = (np.arange(256, dtype=np.float32) / np.float32(255) - np.float32(0.4)) / np.float32(0.2)
    assert found[1, 0].tolist() == expected.tolist()
