"""Train by forward gradients, with the training loop, checkpoints and records of `reproduce.measures.training`.

The metrics of an epoch have two more entries:

    probes       number of steps of the epoch
    measured     `guess_cosine`: for each block the mean cosine between target and guess over these steps and their
                 samples, in the space of the cell. It is None for the last block, which is trained by backpropagation,
                 and in forward mode, where the norm of the target is unknown.
"""

from typing import Any

import torch

from petra_core import Stage
from reproduce.cells.kinds import BLOCK_MODELS, Cell, ForwardGradientCell
from reproduce.data.sample_hash import DROPOUT, INITIALISATION, derive_seed
from reproduce.distributed.group import UnsupportedError
from reproduce.forward_gradients.blocks import auxiliary
from reproduce.forward_gradients.training import ForwardGradients
from reproduce.measures.context import MEMORY_FORMAT, Context
from reproduce.measures.training import Trainer, optimizer, train_to_end
from reproduce.records.record import Record


def measure(cell: Cell, record: Record, context: Context) -> dict[str, Any]:
    """Train to the end. See `reproduce.measures.training.train` for the result."""
    assert isinstance(cell, ForwardGradientCell)
    return train_to_end(_Trainer(cell, record, context), context)


class _Trainer(Trainer):
    """Train one cell by forward gradients."""

    _cell: ForwardGradientCell
    pipeline: ForwardGradients

    def _engine(self, stages: list[Stage]) -> ForwardGradients:
        cell, context, options = self._cell, self._context, self._context.options
        if context.group.size > 1 or context.trace is not None or options.cuda_graphs or options.compiled:
            raise UnsupportedError(
                "forward gradients only support one process without CUDA graphs, compilation and traces: leave out "
                "--processes, --cuda-graphs, --compile and --trace"
            )
        classes = self._loader.num_classes
        with torch.random.fork_rng(devices=[]):
            # A separate seed, so that the network has the same initial weights as with any other method.
            torch.manual_seed(derive_seed(cell.seed, INITIALISATION, 1))
            return ForwardGradients(
                [stage.to(memory_format=MEMORY_FORMAT).to(context.device) for stage in stages],
                cell.algorithm,
                auxiliary=auxiliary(cell.auxiliary, BLOCK_MODELS[cell.model], num_classes=classes, width=cell.width),
                optimizer=optimizer(cell),
                seed=derive_seed(cell.seed, DROPOUT),
            )

    def _measure(self) -> dict[str, Any]:
        steps, cosines = self.pipeline.mean_cosines()
        return {"probes": steps, "measured": {"guess_cosine": [*cosines, None]}}
