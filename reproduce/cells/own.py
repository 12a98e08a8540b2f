"""A user's network as the model of a cell: `module:function`.

The function takes no arguments and returns the stages of a pipeline, or an `nn.Sequential`, whose children become
buffered stages and whose last child becomes the head with cross-entropy. It may also return (stages, inputs, target)
with a micro-batch, which `partition` then uses instead of random samples of a data set.

The cell contains the spelled name, so the name is part of its identity. What the function does is not: records and
checkpoints therefore contain a SHA-256 of the module's file and of the modules of the same folder that it imports, and
a checkpoint or record of other files is not continued.
Reading a record never imports the module. Importing this module imports no torch.
"""

import contextlib
import hashlib
import importlib
import inspect
import re
import sys
from modulefinder import ModuleFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from reproduce.cells import catalogue
from reproduce.cells.base import CellError, near_matches

if TYPE_CHECKING:
    from petra_core.stages import Stage

#: The settings of a cell that the function decides, with the only value that they have for it.
STEM, WIDTH = "own", 1


def is_own(model: str) -> bool:
    """Return whether a model is spelled as a user's network."""
    return ":" in model


def check(model: str, stem: str, width: int) -> None:
    """Check the spelling and the settings that the function decides. The module is not imported.

    Raises:
        CellError: If one is wrong.

    """
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", model, re.ASCII):
        raise CellError(
            f"a network of your own is spelled module:function, such as my_networks:small, with the module as in an "
            f"import statement; got {model!r}"
        )
    for name, value, allowed in (("stem", stem, STEM), ("width", width, WIDTH)):
        if value != allowed:
            raise CellError(f"{name} is decided by the function {model}, so leave --{name} out; got {value}")


def slug(model: str) -> str:
    """Return a model's name for names of files, without colons and dots."""
    return re.sub(r"[:.]", "-", model)


def source(model: str) -> dict[str, str]:
    """Return the spelled function and the SHA-256 of the code that makes the network.

    That is the hash of the module's file or, if the module imports others of its folder, of the hashes of all of them.

    Raises:
        CellError: If the module cannot be imported.

    """
    module = _import_module(model)
    hashes = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in _files(module).items()}
    listed = "".join(f"{name} {digest}\n" for name, digest in sorted(hashes.items()))
    digest = hashlib.sha256(listed.encode()).hexdigest() if len(hashes) > 1 else hashes[module.__name__]
    return {"function": model, "sha256": digest}


def _files(module: ModuleType) -> dict[str, Path]:
    """Return the files of a module and of all modules that it imports from the folder of its top package, by name."""
    file = Path(inspect.getfile(module))
    depth = module.__name__.count(".") + (file.name == "__init__.py")
    finder = ModuleFinder([str(file.parents[depth])], excludes=["petra_core", "reproduce"])
    with contextlib.suppress(ImportError):  # a package without __init__.py
        finder.import_hook(module.__name__)
    found = {name: getattr(other, "__file__", None) for name, other in finder.modules.items()}
    return {module.__name__: file} | {name: Path(path) for name, path in found.items() if path}


def build(model: str) -> "list[Stage]":
    """Call the function and return the stages of its network.

    Raises:
        CellError: If there is no such function, or it returns no network.

    """
    return _call_factory(model)[0]


def micro_batch(model: str) -> tuple[Any, Any] | None:
    """Call the function and return its micro-batch, if it returns one. Raises CellError as `build` does."""
    return _call_factory(model)[1]


def check_samples(model: str, dataset: catalogue.Dataset, size: int) -> None:
    """Evaluate a user's network once on samples of the shape of a data set, before anything is recorded.

    Args:
        model: The spelled network.
        dataset: The data set.
        size: Height and width of images in pixels; for text, tokens of a sequence.

    Raises:
        CellError: If the network does not accept the samples, its output has too few classes, or a second call of the
            function gives other weights.

    """
    import torch

    from petra_core.stages import in_evaluation_mode, sequential

    samples = torch.zeros((2, size), dtype=torch.int64) if dataset.text else torch.zeros(2, 3, size, size)
    shape = f"{samples.dtype} {list(samples.shape)}"
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        first = sequential(build(model)).state_dict()
        torch.manual_seed(0)
        stages = build(model)
        second = sequential(stages).state_dict()
        # Without nan, which a buffer may contain, and which differs from itself.
        if any(not torch.equal(tensor.nan_to_num(), first[name].nan_to_num()) for name, tensor in second.items()):
            raise CellError(
                f"--model {model}: a second call of the function with the same seed of torch gives other weights; draw "
                f"them from torch's generator, which the seed of a cell sets, and not from NumPy or Python's random"
            )
        try:
            with in_evaluation_mode(stages):
                output = sequential(stages)(samples)
        except Exception as error:
            raise CellError(
                f"--model {model}: the network cannot be evaluated on samples of --dataset {dataset.name}, which are "
                f"{shape}: {type(error).__name__}: {error}"
            ) from error
    classes = dataset.num_classes
    each = [size] if dataset.text else []  # what a sample has a label for, after the classes
    found = list(output.shape) if isinstance(output, torch.Tensor) else []
    if not (len(found) == 2 + len(each) and found[1] >= classes and found[2:] == each):
        raise CellError(
            f"--model {model}: the output for samples {shape} of --dataset {dataset.name} has the shape {found}, "
            f"expected {[2, classes, *each]}, with at least {classes} classes in dimension 1"
        )


def _import_module(model: str) -> ModuleType:
    name = model.partition(":")[0]
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does; an installed command does not
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise CellError(
                f"--model {model}: there is no module {error.name}; it is looked for in the current folder and in the "
                f"folders of PYTHONPATH"
            ) from None
        raise CellError(f"--model {model}: the module {name} imports {error.name}, which is not installed") from error
    except Exception as error:
        raise CellError(f"--model {model}: importing {name} failed: {type(error).__name__}: {error}") from error


def _call_factory(model: str) -> "tuple[list[Stage], tuple[Any, Any] | None]":
    module, name = _import_module(model), model.partition(":")[2]
    if not hasattr(module, name):
        functions = [other for other, value in vars(module).items() if callable(value) and other[0] != "_"]
        raise CellError(f"--model {model}: {module.__name__} has no {name}; {near_matches(name, functions)}")
    function = getattr(module, name)
    if not callable(function):
        raise CellError(
            f"--model {model}: {name} has the type {type(function).__name__}, expected a function without arguments "
            f"that returns the stages"
        )
    import torch

    try:
        with torch.device("cpu"):  # also where a prediction puts new tensors on the meta device
            result = function()
    except Exception as error:
        raise CellError(
            f"--model {model}: the function is called without arguments and raised {type(error).__name__}: {error}"
        ) from error
    batch: tuple[Any, Any] | None = None
    if isinstance(result, tuple) and len(result) == 3 and not _is_stages(result):
        result, batch = result[0], result[1:]
    return _stages(model, result), batch


def _is_stages(value: Any) -> bool:
    from petra_core.stages import Stage

    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, Stage) for item in value)


def _stages(model: str, value: Any) -> "list[Stage]":
    from torch import nn

    from petra_core.inspection.modules import check_stages
    from petra_core.models import from_sequential

    if isinstance(value, nn.Sequential):
        value = from_sequential(value)
    if not _is_stages(value):
        kinds = f" of {[type(item).__name__ for item in value][:4]}" if isinstance(value, list | tuple) else ""
        raise CellError(
            f"--model {model}: the function returned {type(value).__name__}{kinds}, expected a list of stages "
            f"(BufferedStage, ReversibleStage and at the end HeadStage), an nn.Sequential, or one of them with a "
            f"micro-batch: (stages, inputs, target)"
        )
    try:
        check_stages(value)
    except (TypeError, ValueError) as error:
        raise CellError(f"--model {model}: {error}") from error
    return list(value)
