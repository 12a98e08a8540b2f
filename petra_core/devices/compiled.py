"""The functions of stages, compiled by `torch.compile`: an option, for devices on which that is faster.

The obvious thing to compile is the whole model, and a pipeline has none: its stages work on different micro-batches,
with weights that the engine chooses. So the function of each block is compiled by itself, F of a coupling or the module
of a buffered stage, and everything around it stays as it is: who evaluates, with which weights, with or without a
graph. Blocks of the same shapes share what was compiled.

Compiled functions round differently. They are made at the first evaluation of each kind (forward, reconstructed graph,
evaluation mode), which takes a minute or more for a network; modules and their state dicts are not changed. Each batch
shape is compiled separately, so an evaluation that is short beside the training runs within `uncompiled`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from petra_core.stages import Stage

__all__ = ["compile_functions", "uncompiled"]

#: More than a function has: forward, reconstructed graph with frozen buffers, recorded graph, evaluation mode, and with
#: stashed weights.
VARIANTS = 8


def compile_functions(stages: Sequence[Stage], *, backend: str = "inductor") -> None:
    """Compile the function of each block of the stages, in place, at its next evaluations.

    It has to be done before the first step, since what one step evaluates and another differentiates must be rounded
    alike.

    Args:
        stages: of a pipeline.
        backend: of torch.compile.

    """
    from torch._dynamo import config  # torch's compiler takes seconds to import, and most runs never need it

    functions = [part.function for stage in stages for part in stage.parts()]
    # Beyond the limit torch goes on without compiling. It is counted by lines of code, and most blocks share theirs.
    config.recompile_limit = max(config.recompile_limit, VARIANTS * len(functions))
    # A reconstructed graph repeats the random numbers of its forward from the state of torch's generators (dropout);
    # inductor's own numbers are others in a function with a graph than in one without.
    options: dict[str, Any] = {"options": {"fallback_random": True}} if backend == "inductor" else {}
    for function in functions:
        # As `function.compile()`, which in torch 2.11 silently compiles nothing of torch's own modules, such as
        # nn.Sequential, because it begins in a frame of torch. A copy of the module is not compiled.
        compiled = torch.compile(_calling(function), backend=backend, dynamic=False, **options)
        function._compiled_call_impl = compiled


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled functions as the plain modules that they were made of, and compile nothing."""
    with torch.compiler.set_stance("force_eager"):
        yield


def _calling(function: nn.Module) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        return function._call_impl(*inputs)  # type: ignore[no-untyped-call]  # torch gives it no types

    return call
