"""Preload the modules of the server of `tests.processes`, so that its processes do not import or load them again."""

import gc
import os

import pytest
import torch._dynamo
import torch.distributed.pipelining

import benchmarks.recording
import reproduce.commands.cli
import reproduce.distributed.processes
import reproduce.measures.training
from reproduce.data.digits import digits

__all__ = ["benchmarks", "pytest", "reproduce", "torch"]

digits(8)
os.fsync = os.fstat  # as in tests/conftest.py
# Otherwise a garbage collection would write to, and so copy, all memory of these modules.
gc.collect()
gc.freeze()
