"""FFCV 1.0.2 without what it does to the rest of the process. Importing this module imports FFCV.

importing it sets torch's threads to 1      saved and restored
so does making a Loader, starting an        the function that does it is replaced: the last of these happens in a
epoch, and its own thread once it runs      thread of FFCV's, some time later, and cannot be undone from outside
every Loader compiles for 7 to 10 s         `uncompiled`: our operations are compiled already, once for all Loaders;
and makes Numba complain when it is freed   FFCV's few lines between them run in Python
an epoch that is left early leaves a        `close` ends it
thread that waits for ever
an epoch makes streams on a GPU, current    switched off: our operations give tensors of the CPU
or not, if there is any
its import uses modules that are deprecated   the warnings are silenced
"""

import contextlib
import queue
import warnings
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["Decoder", "LabelDecoder", "Loader", "TraversalOrder", "close", "imdecode", "uncompiled"]

_threads = torch.get_num_threads()
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of distutils, for one
        import ffcv.loader.epoch_iterator as epoch_iterator
        from ffcv.fields.basics import IntDecoder as LabelDecoder
        from ffcv.fields.rgb_image import SimpleRGBImageDecoder as Decoder
        from ffcv.libffcv import imdecode
        from ffcv.loader import Loader
        from ffcv.pipeline.compiler import Compiler
        from ffcv.traversal_order.base import TraversalOrder
except ImportError as error:
    raise ImportError(
        f"FFCV cannot be imported ({error}). Install it in the suite's folder with `pip install -e '.[ffcv]' -c "
        f"constraints.txt` (it needs a C++ compiler and the system packages pkg-config, libopencv-dev and "
        f"libturbojpeg0-dev; `nox -s tests` sees to them), or choose another loader"
    ) from error
finally:
    torch.set_num_threads(_threads)


epoch_iterator.IS_CUDA = False


def _set_num_threads(cls: Any, number: int) -> None:
    cls.num_threads = max(number, 1)


Compiler.set_num_threads = classmethod(_set_num_threads)


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Loaders that are made within run their operations as they are."""
    before = Compiler.is_enabled
    Compiler.set_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        Compiler.set_enabled(before)


def close(iterator: Any) -> None:
    """End an epoch's thread, wherever it is.

    FFCV's own `close` raises a flag that the thread looks at only while the queue is full, and never after its last
    batch; so there is no next batch for it, and whatever it still wants to put into the queue finds room.
    """
    iterator.iter_ixes = iter(())
    iterator.close()
    while iterator.is_alive():
        with contextlib.suppress(queue.Empty):
            iterator.output_queue.get(timeout=0.01)
