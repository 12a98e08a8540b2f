"""Images per second of the data loaders, in pairs, and the loader's share of a training step.

There are four parts. "small" compares FFCV with torchvision's transforms in a DataLoader, on images of 32 x 32 pixels
with flip and crop. "memory" compares the in-memory loader with FFCV on the same images. "jpeg" compares FFCV with
torchvision on photographs of 500 x 375 pixels with random resized crops of 224. "share" compares the processor time of
a batch of 64 with the time of a tick of RevNet-18.

DataLoader is used as in torchvision's examples, with as many worker processes as FFCV has decoding threads. Both
loaders run at full speed, in turn, within one process, and the result is the median of the ratios of neighbouring runs.
Start-up (worker processes, Numba) is excluded; the time between epochs is included. Pixels are random, and the
photographs come from scikit-learn, so nothing is downloaded. Usage with the defaults:

    python -m benchmarks.loaders --parts small memory jpeg share --workers 1 2 --pairs 7 --seconds 3
"""

import argparse
import itertools
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benchmarks.arguments import CLASSES, add_threads, count, positive, whole_number
from benchmarks.recording import Recorder, about, add_options, command
from benchmarks.tick import full_pipeline, rounds
from petra_core import methods, models
from reproduce.data.beton import JpegFiles, RawImages, write_beton
from reproduce.data.ffcv_loader import FfcvFile
from reproduce.data.loader import BatchFormat, InMemory, Loader
from reproduce.measures.context import MEMORY_FORMAT
from reproduce.records.benchmarks import Benchmark, Comparison

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SMALL = BatchFormat(num_classes=10, image_size=32, mean=MEAN, deviation=DEVIATION)
LARGE = BatchFormat(num_classes=10, image_size=224, mean=MEAN, deviation=DEVIATION)
BATCH = 64
WARM_UP = 8  # batches; more than any loader prefetches

Batches = Iterator[object]


class PillowImages(Dataset[tuple[object, int]]):
    """In-memory images, served one by one through Pillow as torchvision's CIFAR10 does."""

    def __init__(self, images: RawImages) -> None:
        self._pixels = np.ascontiguousarray(images.pixels.transpose(0, 2, 3, 1))
        self._labels = images.labels.tolist()
        self._transform = v2.Compose([v2.RandomCrop(32, padding=4), *common_transforms()])

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[object, int]:
        return self._transform(Image.fromarray(self._pixels[index])), self._labels[index]


def common_transforms() -> list[torch.nn.Module]:
    return [
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, DEVIATION),
    ]


def of_dataloader(dataset: Dataset[tuple[object, int]], workers: int) -> Callable[[], Batches]:
    """Return a function that makes endless batches as torchvision's examples do."""

    def batches() -> Batches:
        loader = DataLoader(
            dataset, BATCH, shuffle=True, num_workers=workers, drop_last=True, persistent_workers=workers > 0
        )
        return itertools.chain.from_iterable(itertools.repeat(loader))

    return batches


def of_loader(loader: Loader) -> Callable[[], Batches]:
    """Return a function that makes endless batches with one of this project's loaders."""
    return lambda: (batch for epoch in itertools.count() for batch in loader.epoch(epoch))


def rate(make: Callable[[], Batches], seconds: float) -> float:
    """Return the images per second of a loader after warm-up."""
    batches = make()
    for _ in itertools.islice(batches, WARM_UP):
        pass
    begin = time.perf_counter()
    count = 0
    while time.perf_counter() - begin < seconds:
        next(batches)
        count += 1
    elapsed = time.perf_counter() - begin
    del batches  # ends its threads and processes before the other loader runs
    return BATCH * count / elapsed


def compare(
    title: str,
    one: tuple[str, Callable[[], Batches]],
    other: tuple[str, Callable[[], Batches]],
    options: argparse.Namespace,
    recorder: Recorder,
) -> None:
    """Compare two named loaders by the rates of neighbouring runs, in alternating order."""
    for number in range(options.pairs):
        pair = {name: rate(make, options.seconds) for name, make in ((other, one) if number % 2 else (one, other))}
        for name, value in pair.items():
            recorder.add(title, name, "rate", "images/s", value)
    recorder.comparisons.append(Comparison(title, "rate", one[0], other[0]))
    print(f"  {title}: {pair[one[0]]:,.0f} and {pair[other[0]]:,.0f} images/s in the last pair", flush=True)


def small_images(count: int, folder: Path) -> tuple[RawImages, Path]:
    """Return random small images in memory and the path of a .beton file with them."""
    pixels = np.random.default_rng(0).integers(256, size=(count, 3, 32, 32), dtype=np.uint8)
    images = RawImages(pixels, np.arange(count) % 10)
    write_beton(folder / "small.beton", images)
    return images, folder / "small.beton"


def in_memory(images: RawImages) -> Loader:
    return Loader(InMemory(images, SMALL, augment=True), BATCH, seed=0)


def through_ffcv(path: Path, workers: int, batch_format: BatchFormat = SMALL) -> Loader:
    return Loader(FfcvFile(path, batch_format, augment=True, workers=workers), BATCH, seed=0)


def photographs(folder: Path, count: int) -> JpegFiles:
    """Write JPEG files of ImageNet's median size to ten class folders."""
    sources = [Image.fromarray(image) for image in load_sample_images().images]
    random = np.random.default_rng(0)
    paths = []
    for number in range(count):
        directory = folder / f"{number % 10}"
        directory.mkdir(exist_ok=True, parents=True)
        source = sources[number % len(sources)]
        width = int(random.integers(300, source.width))
        height = width * 3 // 4 if width * 3 // 4 < source.height else source.height
        left, top = int(random.integers(source.width - width)), int(random.integers(source.height - height + 1))
        paths.append(directory / f"{number:05}.JPEG")
        image = source.resize((500, 375), Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
        image.save(paths[-1], quality=95)
    return JpegFiles(paths, [number % 10 for number in range(count)])


def seconds_of_a_batch(loader: Loader) -> float:
    """Return the processor time of one batch of an epoch, over all threads: the shortest of three epochs."""
    epochs = []
    for epoch in range(4):  # the first one compiles and faults pages in
        begin = time.process_time()
        for _ in loader.epoch(epoch):
            pass
        epochs.append((time.process_time() - begin) / loader.batches)
    loader.close()
    return min(epochs[1:])


def seconds_of_a_tick(width: int, pairs: int) -> float:
    """Return the median time of a tick of PETRA on RevNet-18 in steady state, with the kernels of training."""
    torch.manual_seed(0)
    stages = [s.to(memory_format=MEMORY_FORMAT) for s in models.revnet(18, num_classes=CLASSES, width=width)]
    images = torch.randn(BATCH, 3, 32, 32).to(memory_format=MEMORY_FORMAT)
    labels = torch.randint(CLASSES, (BATCH,))
    step = partial(full_pipeline(stages, methods.PETRA, images, labels).step, images, labels)
    return statistics.median(seconds for (seconds,) in rounds([step], pairs, torch.device("cpu")))


def against_torchvision(
    part: str,
    file: Path,
    batch_format: BatchFormat,
    dataset: Dataset[tuple[object, int]],
    options: argparse.Namespace,
    recorder: Recorder,
) -> None:
    """Compare FFCV with torchvision for each number of workers."""
    for workers in options.workers:
        loader = through_ffcv(file, workers, batch_format)
        rivals = ("FFCV", of_loader(loader)), ("torchvision", of_dataloader(dataset, workers))
        compare(f"{part}, {workers} workers: FFCV / torchvision", *rivals, options, recorder)
        loader.close()


def small(options: argparse.Namespace, folder: Path, recorder: Recorder) -> None:
    images, file = small_images(options.images, folder)
    against_torchvision("small", file, SMALL, PillowImages(images), options, recorder)


def memory(options: argparse.Namespace, folder: Path, recorder: Recorder) -> None:
    images, file = small_images(options.images, folder)
    for workers in options.workers:
        title = f"memory, {workers} threads: memory / FFCV"
        loader = through_ffcv(file, workers)
        torch.set_num_threads(max(workers, 1))
        rivals = ("memory", of_loader(in_memory(images))), ("FFCV", of_loader(loader))
        compare(title, *rivals, options, recorder)
        loader.close()


def jpeg(options: argparse.Namespace, folder: Path, recorder: Recorder) -> None:
    files, file = photographs(folder / "images", options.files), folder / "jpeg.beton"
    write_beton(file, files)
    print(f"  photographs of {statistics.mean(path.stat().st_size for path in files.paths) / 1e3:.0f} kB")
    transform = v2.Compose([v2.RandomResizedCrop(LARGE.image_size), *common_transforms()])
    against_torchvision("jpeg", file, LARGE, ImageFolder(folder / "images", transform), options, recorder)


def share(options: argparse.Namespace, folder: Path, recorder: Recorder) -> None:
    images, file = small_images(options.images, folder)
    torch.set_num_threads(1)
    batches = {
        "FFCV": seconds_of_a_batch(through_ffcv(file, 1)),
        "memory": seconds_of_a_batch(in_memory(images)),
    }
    torch.set_num_threads(options.threads)
    for width in options.widths:
        tick = seconds_of_a_tick(width, options.pairs)
        for name, batch in batches.items():
            title = f"share, {name}, RevNet-18 of width {width}"
            recorder.add(title, "batch", "time", "s", batch)
            recorder.add(title, "tick", "time", "s", tick)
            recorder.comparisons.append(Comparison(title, "time", "batch", "tick"))
            percent, duration = 100 * batch / tick, f"{1e3 * batch:.2f} ms of {1e3 * tick:.0f} ms"
            print(f"  {title}: {percent:.2f} % ({duration}, {options.threads} threads)", flush=True)


PARTS = {"small": small, "memory": memory, "jpeg": jpeg, "share": share}


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run the benchmark from the command line and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure (default all)")
    parser.add_argument(
        "--workers", nargs="+", type=whole_number, default=[1, 2], help="threads or processes (default 1 2)"
    )
    parser.add_argument("--pairs", type=count, default=7, help="timed pairs per ratio (default 7)")
    parser.add_argument("--seconds", type=positive, default=3, help="seconds per run (default 3)")
    parser.add_argument("--images", type=count, default=50_000, help="number of small images (default 50000, as CIFAR)")
    parser.add_argument("--files", type=count, default=1000, help="number of photographs (default 1000)")
    parser.add_argument(
        "--widths", nargs="+", type=count, default=[64, 16], help="widths of RevNet-18 in part share (default 64 16)"
    )
    add_threads(parser)
    add_options(parser, "loaders")
    options = parser.parse_args(arguments)

    recorder = Recorder("Loaders", about(__doc__), command("benchmarks.loaders", arguments), options)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "torchvision", "pillow", "ffcv", "numba"))
    print(f"{platform.processor() or platform.machine()}, {versions}, batch {BATCH}, {options.pairs} pairs")
    for part in options.parts:
        with tempfile.TemporaryDirectory() as folder:
            PARTS[part](options, Path(folder), recorder)
    recorder.notes.append(f"Measured with {versions}.")
    return recorder.finish()


if __name__ == "__main__":
    main()
