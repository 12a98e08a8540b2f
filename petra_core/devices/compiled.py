"""Compile the functions of stages with `torch.compile`, optionally, for devices on which this is faster.

The whole model cannot be compiled, since the stages of a pipeline work on different micro-batches, with weights that
the engine chooses. Instead, the function of each block is compiled separately: F of a coupling, or the module of a
buffered stage. The engine still chooses the weights and whether a graph is recorded. Blocks of the same shapes share
the compiled code.

Compiled functions round differently. They are compiled at the first evaluation of each kind (forward, reconstructed
graph, evaluation mode), which takes a minute or more for a network. Modules and their state dicts are not changed. Each
batch shape is compiled separately, so run short evaluations within `torch.compiler.set_stance("force_eager")`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from petra_core.stages import Stage

#: Upper bound on the compiled variants of a function: forward, reconstructed graph with frozen buffers, recorded graph,
#: evaluation mode, and stashed weights.
VARIANTS = 8


def compile_functions(stages: Sequence[Stage], *, backend: str = "inductor") -> None:
    """Compile the function of each block of the stages in place. Compilation runs at the next evaluations.

    Call this before the first step: a forward and its backward must round in the same way.

    Args:
        stages: Stages of a pipeline.
        backend: Backend of torch.compile.

    """
    from torch._dynamo import config  # torch's compiler takes seconds to import, and most runs never need it

    functions = [part.function for stage in stages for part in stage.parts()]
    # Above this limit torch silently runs functions uncompiled. It counts per code object, which most blocks share.
    config.recompile_limit = max(config.recompile_limit, VARIANTS * len(functions))
    # A reconstructed graph redraws the random numbers of its forward (dropout) from the state of torch's generators.
    # The numbers that inductor generates differ between a function with a graph and one without.
    options: dict[str, Any] = {"options": {"fallback_random": True}} if backend == "inductor" else {}
    for function in functions:
        # The same as `function.compile()`, which in torch 2.11 silently does not compile modules of torch, such as
        # nn.Sequential, because it begins in a frame of torch. A copy of the module is not compiled.
        compiled = torch.compile(_calling(function), backend=backend, dynamic=False, **options)
        function._compiled_call_impl = compiled


def _calling(function: nn.Module) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        return function._call_impl(*inputs)  # type: ignore[no-untyped-call]  # torch gives it no types

    return call
