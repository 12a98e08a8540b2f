"""Seconds to save and to load a checkpoint of a full pipeline, and its size."""

import functools
import shutil
import tempfile
from pathlib import Path

from petra_core import Pipeline, checkpoint

from .setting import NARROW, step_of_full_pipeline


@functools.lru_cache(maxsize=2)
def _full_pipeline(method: str) -> Pipeline:
    return step_of_full_pipeline(NARROW["revnet18"], method, "cpu")[0]


class Checkpoints:
    """Save and load a narrow RevNet-18 with a full pipeline: collect and write the state, read and restore it."""

    params = (["PETRA", "DELAYED_GRADIENTS"],)
    param_names = ("method",)
    version = "1"

    def setup(self, method: str) -> None:
        self.pipeline = _full_pipeline(method)
        self.folder = Path(tempfile.mkdtemp())
        checkpoint.save(self.folder / "written.pt", self.pipeline.state_dict())

    def teardown(self, method: str) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def time_save(self, method: str) -> None:
        checkpoint.save(self.folder / "new.pt", self.pipeline.state_dict())

    def time_load(self, method: str) -> None:
        self.pipeline.load_state_dict(checkpoint.load(self.folder / "written.pt"))

    def track_size(self, method: str) -> int:
        return (self.folder / "written.pt").stat().st_size

    track_size.unit = "bytes"  # type: ignore[attr-defined]  # asv reads it
