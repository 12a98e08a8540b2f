"""The DataLoader for image files: batches that depend on nobody's generator, and errors that arrive whole."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from reproduce.data.batch_format import BatchFormat
from reproduce.data.beton import JpegFiles, UnreadableImageError
from reproduce.data.crops import mirrored, random_resized_crops
from reproduce.data.sample_hash import AUGMENTATION, sample_hashes, sample_order
from reproduce.data.torchvision_loader import TorchvisionEvaluation, TorchvisionLoader

# DataLoader forks, and Python 3.12 warns of that wherever there is a second thread.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

FILES, SIZE = 12, 56
BYTES = BatchFormat(num_classes=5, image_size=SIZE, mean=(0.0,) * 3, deviation=(1 / 255,) * 3)  # 0..255


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> JpegFiles:
    """Files of several sizes and modes."""
    folder = tmp_path_factory.mktemp("images")
    paths = [folder / f"{number}.JPEG" for number in range(FILES)]
    for number, path in enumerate(paths):
        coarse = np.random.default_rng(number).integers(256, size=(5, 6, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((60 + 13 * number, 190 - 11 * number), Image.Resampling.BICUBIC)
        image.convert(("RGB", "L", "CMYK", "RGB")[number % 4]).save(path, quality=95)
    return JpegFiles(paths, [number % 5 for number in range(FILES)])


def loader(files: JpegFiles, batch_size: int = 5, seed: int = 0, workers: int = 0) -> TorchvisionLoader:
    return TorchvisionLoader(files, batch_size, BYTES, seed=seed, augmentation="random_resized_crop", workers=workers)


def assert_equal(one: Iterable[tuple[Tensor, Tensor]], other: Iterable[tuple[Tensor, Tensor]]) -> None:
    """The same batches, bit for bit."""
    for (x, y), (expected_x, expected_y) in zip(one, other, strict=True):
        assert torch.equal(x, expected_x)
        assert torch.equal(y, expected_y)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_do_not_depend_on_workers_and_start(files: JpegFiles, workers: int) -> None:
    whole = list(loader(files).epoch(1))
    assert len(whole) == loader(files).batches == 2
    assert_equal(loader(files, workers=workers).epoch(1), whole)
    assert_equal(loader(files, workers=workers).epoch(1, 1), whole[1:])
    assert_equal(loader(files, workers=workers).epoch(1, 0, 2), whole[:1])
    assert_equal(loader(files, workers=workers).epoch(1, 1, 2), whole[1:])


def test_two_epochs_may_be_read_at_once(files: JpegFiles) -> None:
    one = loader(files)
    expected = list(one.epoch(0)), list(one.epoch(1))
    mixed = list(zip(one.epoch(0), one.epoch(1), strict=True))
    assert_equal([first for first, _ in mixed], expected[0])
    assert_equal([second for _, second in mixed], expected[1])


def test_seeds_and_epochs_differ(files: JpegFiles) -> None:
    batches = [next(loader(files, seed=seed).epoch(epoch))[0] for seed in range(3) for epoch in range(3)]
    assert not any(torch.equal(batches[i], batches[j]) for i in range(9) for j in range(i))


def test_images_are_cropped_where_the_hash_says(files: JpegFiles) -> None:
    [(images, labels)] = loader(files, FILES).epoch(0)
    hashes = sample_hashes(0, 0, AUGMENTATION, FILES)
    assert images.shape == (FILES, 3, SIZE, SIZE)
    assert images.dtype == torch.float32
    for image, label, sample in zip(images, labels, sample_order(0, 0, FILES), strict=True):
        with Image.open(files.paths[sample]) as source:
            width, height = source.size
            [(top, left, h, w)] = random_resized_crops(
                hashes[sample : sample + 1], np.array([height]), np.array([width])
            )
            crop = source.convert("RGB").crop((left, top, left + w, top + h))
        expected = np.asarray(crop.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
        expected = expected[:, ::-1] if mirrored(hashes)[sample] else expected
        assert np.array_equal(image.round().permute(1, 2, 0).numpy(), expected)
        assert label == files.labels[sample]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [5, FILES, 64])
def test_evaluation_is_that_of_torchvision_s_examples(files: JpegFiles, batch_size: int, workers: int) -> None:
    transform = v2.Compose([v2.Resize(64), v2.CenterCrop(SIZE), v2.PILToTensor()])  # as 256 and 224
    evaluation = TorchvisionEvaluation(files, batch_size, BYTES, workers=workers)
    assert evaluation.samples == FILES
    images, labels = (torch.cat(parts) for parts in zip(*evaluation, strict=True))
    expected = torch.stack([transform(Image.open(path).convert("RGB")) for path in files.paths])
    assert torch.equal(images.round().to(torch.uint8), expected)
    assert labels.tolist() == files.labels


def test_images_are_normalised(files: JpegFiles) -> None:
    mean, deviation = (0.5, 0.25, 0.125), (0.2, 0.3, 0.4)
    other = BatchFormat(num_classes=5, image_size=SIZE, mean=mean, deviation=deviation)
    [(images, _)] = TorchvisionEvaluation(files, FILES, other)
    [(plain, _)] = TorchvisionEvaluation(files, FILES, BYTES)
    expected = v2.functional.normalize(plain / 255, mean, deviation)
    assert torch.allclose(images, expected, atol=1e-5)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_file_is_named(tmp_path: Path, files: JpegFiles, workers: int) -> None:
    broken = tmp_path / "broken.JPEG"
    broken.write_bytes(Path(files.paths[0]).read_bytes()[:-100])
    with_it = JpegFiles([*files.paths[:3], broken], [0, 1, 2, 3])
    with pytest.raises(UnreadableImageError, match=r"broken\.JPEG: cannot be read as an image \(.+\)") as caught:
        list(TorchvisionEvaluation(with_it, 2, BYTES, workers=workers))
    assert caught.value.path == broken


@pytest.mark.parametrize("workers", [0, 1])
def test_random_numbers_of_others_are_left_alone(files: JpegFiles, workers: int) -> None:
    before = torch.get_rng_state()
    list(loader(files, workers=workers).epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_refused(files: JpegFiles) -> None:
    with pytest.raises(ValueError, match=r"batch_size 13 is larger than the data set \(12 samples\)"):
        loader(files, 13)
    four = BatchFormat(num_classes=4, image_size=SIZE, mean=BYTES.mean, deviation=BYTES.deviation)
    with pytest.raises(ValueError, match=r"4\.JPEG has the label 4, expected 0\.\.3"):
        TorchvisionEvaluation(files, 4, four)
    with pytest.raises(ValueError, match=r"one of \('none', 'random_resized_crop'\), got 'flip_crop'"):
        TorchvisionLoader(files, 4, BYTES, seed=0, augmentation="flip_crop")
