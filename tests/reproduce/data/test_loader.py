"""Test loader and hash: batches depend only on (seed, epoch, position)."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from reproduce.data import sample_hash
from reproduce.data.beton import RawImages
from reproduce.data.loader import BatchFormat, Evaluation, InMemory, Loader
from reproduce.data.sample_hash import AUGMENTATION, EVALUATION, ORDER, derive_seed, sample_hashes, sample_order
from tests.fake_data import assert_same_batches

SIZE = 6
BYTES = BatchFormat(num_classes=10, image_size=SIZE, mean=(0.0,) * 3, deviation=(1 / 255,) * 3)  # 0..255


def images(samples=20):
    """Make images whose pixels encode their place: channel 0 the image, channel 1 the row, channel 2 the column."""
    pixels = np.zeros((samples, 3, SIZE, SIZE), np.uint8)
    pixels[:, 0] = np.arange(samples)[:, None, None]
    pixels[:, 1] = np.arange(1, SIZE + 1)[:, None]
    pixels[:, 2] = np.arange(1, SIZE + 1)
    return RawImages(pixels, np.arange(samples) % 10)


def loader(batch_size, seed=0, augment=True, samples=20):
    return Loader(InMemory(images(samples), BYTES, augment=augment), batch_size, seed=seed)


@pytest.mark.parametrize("batch_size", [1, 3, 20])
def test_epoch_is_a_shuffle_without_incomplete_batch(batch_size):
    """An epoch shuffles the samples, repeats none and drops the incomplete batch."""
    ours = loader(batch_size, augment=False)
    batches = list(ours.epoch(0))
    assert len(batches) == ours.batches == 20 // batch_size
    assert all(x.shape == (batch_size, 3, SIZE, SIZE) and x.dtype == torch.float32 for x, _ in batches)
    numbers = torch.cat([x[:, 0, 0, 0] for x, _ in batches]).round().long()
    assert len(set(numbers.tolist())) == len(numbers) == ours.batches * batch_size
    assert torch.equal(numbers % 10, torch.cat([y for _, y in batches]))
    assert numbers.tolist() != sorted(numbers.tolist())


def test_augmentation_makes_no_copy_of_data_set():
    """The data set was once padded as a whole, on the device: for ImageNet32 6 GB in addition to 4."""
    made = loader(2, seed=5, samples=200)
    largest = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            largest.append(result.nbytes if isinstance(result, torch.Tensor) else 0)
            return result

    with Sizes():
        next(made.epoch(0))
    assert max(largest) < images(200).pixels.nbytes / 2


@pytest.mark.parametrize(("step", "each"), [(1, 6), (2, 3), (4, 1), (7, 0)])
def test_readers_share_an_epoch_from_any_position(step, each):
    """Several readers get disjoint parts of an epoch, and each may start in the middle."""
    whole = list(loader(3, seed=5).epoch(2))
    for reader in range(step):
        share = list(loader(3, seed=5).epoch(2, reader, step))
        assert len(share) == each
        assert_same_batches(share, whole[reader::step][:each])
        assert_same_batches(loader(3, seed=5).epoch(2, reader + step, step), share[1:])


def test_hash_is_splitmix64_and_stable():
    """These are the published first outputs of SplitMix64 with seed 1234567. Recorded results depend on them."""
    states = np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * sample_hash.INCREMENT  # SplitMix64 adds it first
    assert sample_hash.mix(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert sample_order(0, 0, 8).tolist() == [2, 0, 4, 5, 3, 1, 7, 6]
    assert sample_order(1, 2, 8).tolist() == [3, 4, 2, 6, 0, 5, 1, 7]
    assert sample_hashes(1, 2, ORDER, 2).tolist() == [7514956018966487631, 11926612683539703642]
    assert derive_seed(3, sample_hash.INITIALISATION) == 4155285821718478473


def test_crops_are_windows_of_padded_image():
    """A crop is the window of the padded image that its hash determines, mirrored half of the time."""
    padded = torch.nn.functional.pad(torch.from_numpy(images(200).pixels).float(), (4, 4, 4, 4))
    places, flips = set(), 0
    for number in range(3):
        order = sample_order(0, number, 200)
        hashes = sample_hashes(0, number, AUGMENTATION, 200)
        [(x, _)] = loader(200, samples=200).epoch(number)
        for crop, sample in zip(x.round(), order, strict=True):
            bits = int(hashes[sample])
            flip, top, left = bits & 1, (bits >> 8) % 2**24 % 9, (bits >> 32) % 2**24 % 9
            window = padded[sample, :, top : top + SIZE, left : left + SIZE]
            assert torch.equal(crop, window.flip(2) if flip else window)
            places.add((top, left))
            flips += flip
    assert len(places) == 81  # 600 draws of 81 places: all occur with probability 0.95; the seed is fixed
    assert abs(flips - 300) < 62  # five standard deviations


def test_evaluation_reads_all_in_order_and_size_is_checked():
    """Evaluation reads all samples in order, also by shares; a batch larger than the data set is refused."""
    for batch_size in (7, 64):
        x, y = (torch.cat(parts) for parts in zip(*Evaluation(InMemory(images(), BYTES), batch_size), strict=True))
        assert y.tolist() == images().labels.tolist()
        assert torch.equal(x.round().to(torch.uint8), torch.from_numpy(images().pixels))
    evaluation = Evaluation(InMemory(images(), BYTES), 7)  # batches of 7, 7 and 6
    assert evaluation.batches == 3
    whole = list(evaluation)
    assert_same_batches(evaluation.share(0, 2), whole[::2])
    assert_same_batches(evaluation.share(1, 2), whole[1::2])
    assert not list(evaluation.share(3, 4))
    used = []
    source = InMemory(images(), BYTES)
    source.batches = lambda order, hashes, size: iter(used.append(hashes.tolist()) or ())
    list(Evaluation(source, 7))
    assert used == [sample_hashes(0, 0, EVALUATION, 20).tolist()]  # these mask text, for every seed
    with pytest.raises(ValueError, match="batch_size 21 is larger than this training set \\(20 samples\\)"):
        loader(21)


def test_normalisation_divides_by_tensors():
    """A GPU does not divide by a Python number. It multiplies by the inverse, which rounds differently."""
    divisors = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket is torch.ops.aten.div:
                divisors.append(args[1])
            return func(*args, **(kwargs or {}))

    images = torch.arange(256, dtype=torch.uint8).expand(3, 1, -1)
    with Watch():
        form = BatchFormat(num_classes=1, image_size=1, mean=(0.5, 0.4, 0.3), deviation=(0.25, 0.2, 0.1))
        divided = form.normaliser()(images)
    assert len(divisors) == 2
    assert all(divisor.dim() == 3 for divisor in divisors), "a divisor without dimensions may be a number"
    expected = (np.arange(256, dtype=np.float32) / np.float32(255) - np.float32(0.4)) / np.float32(0.2)
    assert divided[1, 0].tolist() == expected.tolist()
