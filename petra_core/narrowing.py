"""Messages in bf16: half the bytes between stages, and what that does to the numbers.

The obvious place to narrow is the wire, between two processes. Then the result depends on where the cuts are: the same
run over two processes and over three gives other weights, and one process none of the rounding at all. Here the sending
stage narrows every message, whoever the receiver is, so that one process rounds exactly as many do. Inside stages all
is float32 as before: the receiver widens what it takes from its inbox.

    stage j     y, float32  ──▶  bf16(y)  ──▶  stage j+1     x = float32(bf16(y))
                x', dx      ◀──  bf16     ◀──                its input, kept or reconstructed, and the gradient

Rounded are the streams that go up, the gradients that come down, and the streams that come down beside them. Not
rounded: micro-batches and targets, which no stage sends, and evaluations, since the trained model will be used whole.

What it does to reversibility. A stage that is to be inverted gets back not its own output y = (x~ + F(x), x) but what
its neighbour made of bf16(y). The stream x that only passes through arrives as it was sent, since rounding twice is
rounding once; F is therefore evaluated at the right place. The other is off by the rounding of x~ + F(x), at most 2^-8
of its magnitude, and that is the error of the reconstructed x~, which is rounded once more on its way down. The next
stage below reads it as the place at which to evaluate F. So errors add up from one reversible stage to the next below,
until a stage that keeps its input ends the row: bf16 messages are for few reversible stages in a row, or for methods
that keep their inputs and have no such error.
"""

import torch

from petra_core.tape import Streams

__all__ = ["DTYPES", "narrowed", "widened"]

#: What messages can be narrowed to. Not float16: a gradient above 65504 or below 6e-8 would be lost.
DTYPES = (torch.bfloat16,)


def narrowed(streams: Streams | None, dtype: torch.dtype | None) -> Streams | None:
    """Floating-point streams as `dtype`; unchanged if there are none or no dtype is given."""
    if streams is None or dtype is None:
        return streams
    return tuple(stream.to(dtype) if stream.is_floating_point() else stream for stream in streams)


def widened(streams: Streams | None, dtype: torch.dtype | None) -> Streams | None:
    """Streams that were narrowed as `dtype`; unchanged if there are none or no dtype is given."""
    if streams is None or dtype is None:
        return streams
    return tuple(stream.to(dtype) if stream.dtype in DTYPES else stream for stream in streams)
