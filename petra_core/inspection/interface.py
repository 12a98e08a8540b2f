"""The interface through which a block uses its inspection, and the null object of the interface."""

import contextlib
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from petra_core.tape import Streams, Tape
from petra_core.weights import StageWeights

__all__ = ["NO_INSPECTION", "NoInspection", "Projections"]

#: Dtype, Euclidean norm and a projection of each tensor.
Projections = tuple[tuple[torch.dtype, float, float], ...]


class NoInspection:
    """The null inspection, of a block that is not inspected or no longer inspected.

    Attributes:
        done: Whether enough micro-batches have been inspected.
        evaluates: Whether forwards are still evaluated a second time.
        projections: Projections of the function's output in the last forward; empty if that was not inspected.

    """

    done: bool = True
    evaluates: bool = False
    projections: Projections = ()

    def watch_forward(self, inputs: Streams) -> contextlib.AbstractContextManager[None]:
        """Return a context for a forward that detects reads of other blocks' tensors, or writes to input or weights."""
        return contextlib.nullcontext()

    def compare_backward(self, before: Projections, *, reconstructs: bool) -> contextlib.AbstractContextManager[None]:
        """Return a context for the evaluation in a backward that compares its output with that of the forward.

        Args:
            before: `projections` of the forward. Empty if the forward had other weights, so that nothing is compared.
            reconstructs: Whether the input is reconstructed, with rounding errors.

        """
        return contextlib.nullcontext()

    def inspect_forward(
        self,
        inputs: Streams,
        outputs: Streams,
        tape: Tape | None,
        weights: StageWeights,
        again: Callable[[], tuple[Tape, bool]],
    ) -> None:
        """Inspect a forward. Attributes and generators are restored after a second evaluation.

        Args:
            inputs: Input of the block.
            outputs: Output of the block.
            tape: Graph of the forward; None if the backward evaluates the block again, which is then done now.
            weights: Weights of the graph, by name.
            again: Function that evaluates the block with a graph, and returns whether it drew the random numbers of
                the first evaluation.

        """

    def check_gradients(self, parameters: Iterable[str], gradients: Sequence[Tensor | None]) -> None:
        """Check the gradients of one backward.

        Args:
            parameters: Names of the parameters.
            gradients: Their gradients.

        """


NO_INSPECTION = NoInspection()
