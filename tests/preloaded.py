"""What the server of `tests.processes` holds, so that none of its processes has to import it or load it again."""

import gc

import pytest
import torch._dynamo
import torch.distributed.pipelining

import benchmarks.recording
import reproduce.commands.cli
import reproduce.measures.training
import reproduce.teams.processes
from reproduce.data.digits import digits

__all__ = ["benchmarks", "pytest", "reproduce", "torch"]

digits(8)
# A process that collects garbage would otherwise write to, and so copy, all memory that holds what is imported here.
gc.collect()
gc.freeze()
