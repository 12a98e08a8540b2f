"""Test batches that a recorded step makes: bitwise those of the loader, for any part of an epoch."""

import numpy as np
import pytest
import torch

from reproduce.data.beton import RawImages
from reproduce.data.loader import BatchFormat, InMemory, Loader
from reproduce.data.resident import ResidentBatches
from reproduce.measures.context import to_memory_format
from tests.compare import assert_bitwise_equal
from tests.fake_cuda import Interpreter

CIFAR = {"mean": (0.4914, 0.4822, 0.4465), "deviation": (0.247, 0.2435, 0.2616)}


def loader_of(samples: int, size: int, batch_size: int, *, augment: bool) -> tuple[Loader, InMemory]:
    generator = np.random.default_rng(samples)
    pixels = generator.integers(0, 256, (samples, 3, size, size), dtype=np.uint8)
    pixels.reshape(-1)[:256] = np.arange(256)  # contains every byte
    images = RawImages(pixels, generator.integers(0, 10, samples))
    source = InMemory(images, BatchFormat(num_classes=10, image_size=size, **CIFAR), augment=augment)
    return Loader(source, batch_size, seed=7), source


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize(("samples", "size", "batch_size"), [(50, 32, 8), (23, 9, 5), (12, 16, 12)])
def test_resident_batches_equal_loader_batches_bitwise(samples: int, size: int, batch_size: int, augment: bool) -> None:
    """All batches equal those of the loader bitwise, with the same memory layout, from any position and stride."""
    loader, source = loader_of(samples, size, batch_size, augment=augment)
    resident = ResidentBatches(loader, source)
    for which in ((0,), (1,), (2, 1, 3), (2, 3, 1)):
        if which[0]:
            resident.prepare(which[0])  # used only if the epoch begins at its first batch
        resident.begin(*which)
        for images, labels in loader.epoch(*which):
            made, made_labels = resident.batch()
            assert_bitwise_equal(made, to_memory_format(images))
            assert made.stride() == to_memory_format(images).stride()
            assert_bitwise_equal(made_labels, labels)
            assert made_labels.dtype == labels.dtype


def test_recording_makes_next_batch_in_few_operations() -> None:
    """The loader launches twice as many, and two copies."""
    loader, source = loader_of(40, 8, 4, augment=True)
    resident = ResidentBatches(loader, source)
    resident.begin(0)
    with Interpreter() as recording:
        images, labels = resident.batch()
    launched = [operation for operation in recording.operations if _has_memory_of_its_own(operation)]
    assert len(launched) <= 11, [str(operation[0]) for operation in launched]
    for epoch in range(2):
        resident.begin(epoch)
        for expected, expected_labels in loader.epoch(epoch):
            recording.again()
            assert_bitwise_equal(images, expected)
            assert_bitwise_equal(labels, expected_labels)


def _has_memory_of_its_own(operation: tuple[object, ...]) -> bool:
    """Return whether an operation writes, because its result is not a view of its arguments."""
    func, args, kwargs, result = operation
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
    tensors = [result] if isinstance(result, torch.Tensor) else list(result)
    given = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    storages = {t.untyped_storage()._cdata for t in given}
    return writes or any(t.untyped_storage()._cdata not in storages for t in tensors)
