"""Import FFCV 1.0.2 without its side effects on the rest of the process.

side effect of FFCV                         remedy here
importing it sets torch's threads to 1      the number is saved and restored
making a Loader and starting an epoch do    the function that sets it is replaced: FFCV's thread calls it at an
so too, and FFCV's thread does it later     unknown time, so it cannot be undone from outside
every Loader compiles for 7 to 10 s, and    `without_compiling`: our operations are compiled once for all Loaders, and
Numba warns when the Loader is freed        FFCV's few lines between them run in Python
an epoch that is not read to its end        `close` ends the thread
leaves a thread that waits forever
an epoch creates CUDA streams whenever      switched off: our operations return CPU tensors
there is a GPU
its import uses deprecated modules          the warnings are suppressed
"""

import contextlib
import queue
import warnings
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["Decoder", "LabelDecoder", "Loader", "TraversalOrder", "close", "imdecode", "without_compiling"]

_threads = torch.get_num_threads()
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # distutils is deprecated, for example
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
        f"libturbojpeg0-dev; `nox -s tests` installs them), or choose another loader"
    ) from error
finally:
    torch.set_num_threads(_threads)


epoch_iterator.IS_CUDA = False


def _set_num_threads(cls: Any, number: int) -> None:
    cls.num_threads = max(number, 1)


Compiler.set_num_threads = classmethod(_set_num_threads)


@contextlib.contextmanager
def without_compiling() -> Iterator[None]:
    """Make the Loaders that are created in this context run their operations without compiling them."""
    before = Compiler.is_enabled
    Compiler.set_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        Compiler.set_enabled(before)


def close(iterator: Any) -> None:
    """End the thread of an epoch, whatever its state.

    FFCV's own `close` sets a flag that the thread reads only while the queue is full, and never after its last batch.
    So this function also takes away the remaining batches and empties the queue until the thread ends.
    """
    iterator.iter_ixes = iter(())
    iterator.close()
    while iterator.is_alive():
        with contextlib.suppress(queue.Empty):
            iterator.output_queue.get(timeout=0.01)
