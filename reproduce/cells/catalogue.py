"""List the data sets of the suite with frozen descriptions, which can be read without the data.

The numbers are those of the official distributions. `reproduce.data.prepare` compares them with the files.
"""

import dataclasses
import importlib.util
import shlex
from dataclasses import dataclass
from pathlib import Path

from reproduce.cells.base import CellError, near_matches

DEFAULT_ROOT = Path("data")  # folder of prepared data sets
FFCV, MEMORY, TORCHVISION = "ffcv", "memory", "torchvision"

Channels = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Description of one data set, with the official numbers."""

    name: str  # name in commands and cells
    title: str  # name in sentences
    num_classes: int  # for text, the number of values of a token
    image_size: int  # default height and width of the network's inputs in pixels; for text, tokens of a sequence
    image_sizes: range  # supported sizes
    train_samples: int  # 0 if there is no official number, as for text that differs between machines
    test_samples: int
    loaders: tuple[str, ...]  # supported loaders, the preferred one first; FFCV only where it is installed
    augmentations: tuple[str, ...]  # supported augmentations of training, the paper's first
    stem: str  # stem of residual networks for these images
    how_to_get: str  # instructions for users without the data; empty if it comes with a dependency
    mean: Channels | None = None  # of each channel, in 0..1; None if `prepare` measures it on the training set
    deviation: Channels | None = None
    downloadable: bool = False  # whether `prepare --download` can get it
    weight_decay: float = 5e-4  # the paper's for this data set; for text RoBERTa's
    text: bool = False  # whether samples are text instead of images

    def describe_size(self, size: int) -> str:
        """Describe a sample of this size, such as `sequences of 64 bytes`."""
        return f"sequences of {size} bytes" if self.text else f"{size}\N{MULTIPLICATION SIGN}{size} pixels"

    @property
    def built_in(self) -> bool:
        """Return whether the data set comes with a dependency or with Python, and is always available."""
        return not self.how_to_get

    def check(self, *, image_size: int, augmentation: str, loader: str, batch_size: int, held_out: int) -> None:
        """Raise CellError if such batches are not supported. The message lists the supported values."""
        self.check_size(image_size)
        for setting, value, known in (
            ("augmentation", augmentation, self.augmentations),
            ("loader", loader, self.loaders),
        ):
            if value not in known:
                raise CellError(f"{setting} must be {' or '.join(known)} for {self.name}, got {value!r}")
        if held_out and self.text:
            raise CellError(f"held_out must be 0 for {self.name}, whose test part is a validation set, got {held_out}")
        if batch_size + held_out > self.train_samples > 0:
            sizes = f"{batch_size} and held_out {held_out} exceed" if held_out else f"{batch_size} exceeds"
            raise CellError(f"batch_size {sizes} the {self.train_samples} training samples of {self.name}")

    def check_size(self, size: int) -> None:
        """Raise CellError if samples of this size are not supported. The message lists the supported sizes."""
        sizes = self.image_sizes
        if size not in sizes:
            wanted = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
            step = f" in steps of {sizes.step}" if sizes.step > 1 else ""
            unit = ", the bytes of a sequence," if self.text else ""
            raise CellError(f"image_size{unit} must be {wanted}{step} for {self.name}, got {size}")

    @property
    def default_loader(self) -> str:
        """The first of the data set's loaders that is installed."""
        return next(name for name in self.loaders if name != FFCV or ffcv_installed())


DIGITS = Dataset(
    name="digits",
    title="scikit-learn's handwritten digits",
    num_classes=10,
    image_size=8,
    image_sizes=range(8, 257, 8),
    train_samples=1437,
    test_samples=360,
    loaders=(MEMORY,),
    augmentations=("none", "flip_crop"),
    stem="cifar",
    how_to_get="",
)
CIFAR10 = Dataset(
    name="cifar10",
    title="CIFAR-10",
    num_classes=10,
    image_size=32,
    image_sizes=range(32, 33),
    train_samples=50_000,
    test_samples=10_000,
    loaders=(FFCV, MEMORY),
    augmentations=("flip_crop", "none"),
    stem="cifar",
    how_to_get=(
        "Get it with --download, or unpack cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html "
        "into a folder and name that folder with --source"
    ),
    downloadable=True,
)
CIFAR100 = dataclasses.replace(
    CIFAR10,
    name="cifar100",
    title="CIFAR-100",
    num_classes=100,
    how_to_get=CIFAR10.how_to_get.replace("cifar-10-binary", "cifar-100-binary"),
)
IMAGENET32 = dataclasses.replace(
    CIFAR10,
    name="imagenet32",
    title="ImageNet32",
    num_classes=1000,
    train_samples=1_281_167,
    test_samples=50_000,
    stem="imagenet32",
    weight_decay=1e-4,
    how_to_get=(
        "Log in at https://image-net.org/download-images, accept the terms, download Imagenet32_train_npz.zip and "
        "Imagenet32_val_npz.zip (ImageNet downsampled to 32 x 32), unpack both into one folder and name it with "
        "--source: it then holds train_data_batch_1.npz to train_data_batch_10.npz and val_data.npz"
    ),
    downloadable=False,
)
IMAGENET = Dataset(
    name="imagenet",
    title="ImageNet (ILSVRC 2012)",
    num_classes=1000,
    image_size=224,
    image_sizes=range(32, 513),
    train_samples=1_281_167,
    test_samples=50_000,
    loaders=(FFCV, TORCHVISION),
    augmentations=("random_resized_crop", "none"),
    stem="imagenet",
    weight_decay=1e-4,
    # The usual constants of torchvision's models. Measuring them would require decoding every image again.
    mean=(0.485, 0.456, 0.406),
    deviation=(0.229, 0.224, 0.225),
    how_to_get=(
        "Log in at https://image-net.org/download-images, accept the terms and download ILSVRC2012_img_train.tar, "
        "ILSVRC2012_img_val.tar (144 GB together) and ILSVRC2012_devkit_t12.tar.gz into one folder DIR. "
        'torchvision checks them and sorts the images into class folders: python -c "from torchvision.datasets '
        "import ImageNet; ImageNet('DIR', 'train'); ImageNet('DIR', 'val')\". Then name DIR with --source: it holds "
        "train/ and val/, each with one folder of images a class"
    ),
)

#: Module of Python that contains the text of `PYDOC`; a record contains its checksum.
SOURCE = "pydoc_data.topics"
PYDOC = Dataset(
    name="pydoc",
    title="the topics of Python's language reference",
    num_classes=256,
    image_size=64,
    image_sizes=range(8, 1025),
    train_samples=0,
    test_samples=0,
    loaders=(MEMORY,),
    augmentations=("mask",),
    stem="bytes",
    how_to_get="",
    weight_decay=0.01,
    text=True,
)

DATASETS = {dataset.name: dataset for dataset in (DIGITS, PYDOC, CIFAR10, CIFAR100, IMAGENET32, IMAGENET)}


def by_name(name: str) -> Dataset:
    """Return the data set of that name. Capital letters, hyphens and underscores do not matter.

    Raises:
        CellError: There is no such data set. The message lists near matches.

    """
    key = name.lower().replace("-", "").replace("_", "")
    if key not in DATASETS:
        raise CellError(f"there is no data set {name!r}; {near_matches(key, DATASETS)}")
    return DATASETS[key]


def ffcv_installed() -> bool:
    """Return whether FFCV is installed, without importing it, which takes seconds and changes torch's threads."""
    return importlib.util.find_spec("ffcv") is not None


def how_to_prepare(folder: Path) -> str:
    """Return the command that prepares the data set of this folder there."""
    root = "" if folder.parent == DEFAULT_ROOT else f" --data-root {shlex.quote(str(folder.parent))}"
    return f"python -m reproduce data prepare {folder.name}{root}"


def advise_preparation(folder: Path, source: str = "") -> str:
    """Return the advice to prepare an unusable data set again, from `source` if it is known."""
    dataset = DATASETS.get(folder.name)
    otherwise = "--download" if dataset is not None and dataset.downloadable else "--source DIR"
    where = f"--source {shlex.quote(source)}" if source else otherwise
    return f"Prepare it again: {how_to_prepare(folder)} --replace {where}"
