"""The interface of an inspection as a block uses it, and its null object."""

import contextlib
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from petra_core.tape import Streams, Tape
from petra_core.weights import StageWeights

__all__ = ["NO_INSPECTION", "NoInspection", "Projections"]

#: Of tensors: dtype, Euclidean norm and a projection.
Projections = tuple[tuple[torch.dtype, float, float], ...]


class NoInspection:
    """The inspection of a block that is not inspected, or not any more. It does nothing.

    Attributes:
        done: Whether enough micro-batches have been inspected.
        evaluates: Whether forwards are still evaluated a second time.
        replaces: Whether evaluations may use other weights than the module's own.
        projections: Projections of the function's output in the last forward; empty if that was not inspected.

    """

    done: bool = True
    evaluates: bool = False
    replaces: bool = False
    projections: Projections = ()

    def evaluation(self, inputs: Streams) -> contextlib.AbstractContextManager[None]:
        """Return a context around a forward that detects reads and writes besides its input and output."""
        return contextlib.nullcontext()

    def evaluation_of_backward(
        self, before: Projections, *, reconstructs: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context around the evaluation for a backward that compares its output with that of the forward.

        Args:
            before: `projections` of the forward. Empty if the forward had other weights, so that nothing is compared.
            reconstructs: Whether the input is reconstructed, with rounding errors.

        """
        return contextlib.nullcontext()

    def evaluated(
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

    def differentiated(self, parameters: Iterable[str], gradients: Sequence[Tensor | None]) -> None:
        """Check the gradients of one backward.

        Args:
            parameters: Names of the parameters.
            gradients: Their gradients.

        """


NO_INSPECTION = NoInspection()
