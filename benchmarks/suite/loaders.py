"""Seconds that the loaders need to make the batches of an epoch."""

import functools
import importlib.util
from pathlib import Path

import numpy as np

from reproduce.data.beton import Beton, RawImages, write_beton
from reproduce.data.loader import BatchFormat, InMemory, Loader, Source

from .setting import CLASSES, open_device, skip

FORMAT = BatchFormat(num_classes=CLASSES, image_size=32, mean=(0.5, 0.5, 0.5), deviation=(0.2, 0.2, 0.2))
IMAGES, BATCH = 2048, 64


@functools.lru_cache(maxsize=1)
def _loader(path: str, name: str) -> Loader:
    source: Source
    if name == "memory":
        source = InMemory(Beton(Path(path)).raw(), FORMAT, augment=True)
    else:
        if importlib.util.find_spec("ffcv") is None:
            skip("FFCV is not installed")
        from reproduce.data.ffcv_loader import FfcvFile

        source = FfcvFile(Path(path), FORMAT, augment=True)
    loader = Loader(source, BATCH, seed=0)
    for _ in loader.epoch(0):  # compiles with Numba and loads pages
        pass
    return loader


class Loaders:
    """Time an epoch of 2048 random images of 32 pixels in 32 batches, with flip and crop."""

    params = (["memory", "ffcv"],)
    param_names = ("loader",)
    version = "1"
    timeout = 300  # for the compilation by Numba

    def setup_cache(self) -> str:
        pixels = np.random.default_rng(0).integers(256, size=(IMAGES, 3, 32, 32), dtype=np.uint8)
        path = Path("images.beton").resolve()
        write_beton(path, RawImages(pixels, np.arange(IMAGES) % CLASSES))
        return str(path)

    def setup(self, path: str, loader: str) -> None:
        open_device("cpu")
        self.loader = _loader(path, loader)

    def time_epoch(self, path: str, loader: str) -> None:
        for _ in self.loader.epoch(1):
            pass
