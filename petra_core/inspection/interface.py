"""What a block asks of an inspection, and the inspection that does nothing."""

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
    """The inspection of a block that has been inspected, or shall not be: it does nothing.

    Attributes:
        done: whether enough micro-batches have been inspected.
        evaluates: whether forwards are still evaluated a second time.
        replaces: whether evaluations may have other weights than the module's own.
        projections: of what the block's function returned in the last forward, if that was inspected.

    """

    done: bool = True
    evaluates: bool = False
    replaces: bool = False
    projections: Projections = ()

    def evaluation(self, inputs: Streams) -> contextlib.AbstractContextManager[None]:
        """Return a context around a forward, which sees what it reads and writes besides its input and output."""
        return contextlib.nullcontext()

    def evaluation_of_backward(
        self, before: Projections, *, reconstructs: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context around the evaluation for a backward, whose output is compared with that of its forward.

        Args:
            before: `projections` of the forward; empty if it had other weights, so that nothing is compared.
            reconstructs: whether the input is reconstructed, with rounding errors.

        """
        return contextlib.nullcontext()

    def compare(self, inputs: Streams, outputs: Streams, again: Callable[[], tuple[Tape, bool]]) -> Tape:
        """Evaluate the block a second time and compare. Attributes and generators are as before afterwards.

        Args:
            inputs: of the block.
            outputs: of the first evaluation.
            again: evaluates the block with a graph, and says whether it drew the random numbers of the first
                evaluation.

        Returns:
            The tape of the second evaluation.

        """
        raise NotImplementedError

    def walk(self, tape: Tape, inputs: Streams, weights: StageWeights) -> None:
        """See that the leaves of a graph are the block's input and its weights."""

    def differentiated(self, parameters: Iterable[str], gradients: Sequence[Tensor | None]) -> None:
        """Look at the gradients of one backward; `parameters` are their names."""


NO_INSPECTION = NoInspection()
