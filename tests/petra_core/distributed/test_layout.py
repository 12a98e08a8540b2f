"""Test that a received tensor has the layout of the sent one, and the bytes of its logical values."""

import pytest
import torch
from torch import Tensor

from petra_core.distributed.groups import CPU
from petra_core.distributed.layout import dense, flat, header_of, layout_of, layouts_in
from tests.compare import assert_bitwise_equal

IMAGES = torch.arange(48.0).view(2, 2, 3, 4)


@pytest.mark.parametrize(
    ("tensor", "keeps_strides"),
    [
        (IMAGES.to(memory_format=torch.channels_last), True),
        (IMAGES.transpose(1, 3), True),
        (IMAGES[1:], True),  # with a storage offset
        (IMAGES[:, :1], False),  # with gaps
        (torch.arange(3).expand(2, 3), False),
        (torch.tensor([1 + 2j, 3 - 1j]).conj(), True),  # its memory holds the values before conjugation
        (torch.tensor([1 + 2j, 3 - 1j]).conj().imag, False),
        (torch.tensor([True, False]), True),
        (torch.tensor(7, dtype=torch.bfloat16), True),
        (torch.empty(0, 3), True),
    ],
)
def test_received_tensor_equals_sent_tensor(tensor: Tensor, keeps_strides: bool) -> None:
    """A received tensor has the values, dtype and strides of the sent one."""
    [sent] = dense((tensor,), CPU)
    assert (sent.stride() == tensor.stride()) is keeps_strides
    streams, gradients = layouts_in(header_of((layout_of((sent,)), None)))
    assert gradients is None
    received = streams[0].empty(CPU)
    flat(received).copy_(flat(sent))
    assert_bitwise_equal(received, tensor.resolve_conj())
    assert received.stride() == sent.stride()


def test_header_rejects_too_large_layout() -> None:
    many = layout_of((IMAGES,) * 40)
    with pytest.raises(ValueError, match=r"takes \d{4} bytes, expected at most 1024"):
        header_of((many, None))
