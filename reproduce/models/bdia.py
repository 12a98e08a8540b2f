"""Bitwise invertible transformers: bidirectional integration approximation (BDIA, arXiv 2407.09093).

The additive coupling changes the network, because F sees one of two streams. BDIA keeps the architecture. A block
x -> x + h(x) is an Euler step. In training, BDIA averages it with a backward step. The weight gamma is +1/2 or -1/2,
drawn for each sample and block. The output then depends on the previous block's input x[k-1], which can be recovered:

    forward   x[k+1] = Q[gamma (x[k-1] + 2^-l s)] + Q[(1 - gamma) x[k] + (1 + gamma) h(x[k])]
    inverse   x[k-1] = (x[k+1] - Q[(1 - gamma) x[k] + (1 + gamma) h(x[k])]) / gamma - 2^-l s
    backward  d x[k-1] = gamma d x[k+1],    d x[k] = d' + (1 - gamma) d x[k+1] + (1 + gamma) J^T d x[k+1]

d' is the incoming gradient of x[k], the stream that passes through. Q rounds to multiples of 2^-l (l = 9) and has a
straight-through gradient. Halving loses the last bit, so it is stored: s = x[k-1] 2^l mod 2, one bit per value, packed
eight to a byte. In evaluation gamma is 0, and the network is the plain transformer with rounded activations.

As a stage, BDIA maps the streams (x[k], x[k-1]) -> (x[k+1], x[k]). As in the additive coupling, h is evaluated on the
stream that passes through. Streams are float32, which represents all multiples of 2^-9 below 32768. The float form,
without Q and s, is not exact: dividing by gamma doubles the error at every block.

The equations come from secondary sources: a report that quotes the paper, and the only published re-implementation.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from petra_core.errors import check_int
from petra_core.stages import Stage, two_streams
from petra_core.tape import CouplingTape, Gradients, Streams, Tape, Value, as_streams, combine_streams, detach, leaf

BITS = 9  # l


class _Round(torch.autograd.Function):
    """Function that rounds to multiples of 2^-bits, with a straight-through gradient."""

    @staticmethod
    def forward(context: object, x: Tensor, bits: int) -> Tensor:
        return round_to(x, bits)

    @staticmethod
    def backward(context: object, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def round_to(x: Tensor, bits: int | None) -> Tensor:
    """Round to the nearest multiple of 2^-bits, ties to even, or return `x` itself if `bits` is None."""
    return x if bits is None else (x * 2**bits).round_() / 2**bits


class Quantise(nn.Module):
    """Layer that rounds to multiples of 2^-bits with a straight-through gradient.

    The result is float32, or float64 for a float64 input. With `bits=None` only the conversion takes place.
    """

    def __init__(self, bits: int | None = BITS) -> None:
        super().__init__()
        self.bits = bits if bits is None else check_int("bits", bits, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.dtype is torch.float64 else x.float()
        if self.bits is None:
            return x
        result: Tensor = _Round.apply(x, self.bits)
        return result

    def extra_repr(self) -> str:
        return f"bits={self.bits}"


class EulerStep(nn.Module):
    """Block of a plain network: x -> x + h(x), both [B, ...]."""

    def __init__(self, h: nn.Module) -> None:
        super().__init__()
        self.h = h

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.h(x)
        return result


class FirstStep(nn.Module):
    """First block, which has no predecessor: x -> (x + Q[h(x)], x). It is the last layer of the stem."""

    def __init__(self, h: nn.Module, bits: int | None = BITS) -> None:
        super().__init__()
        self.h = h
        self.quantise = Quantise(bits)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + self.quantise(self.h(x)), x.clone()


class BdiaStage(Stage):
    """Block x -> x + h(x) of any residual network as a bitwise invertible stage.

    Args:
        h: Function from a tensor [B, ...] to one of the same shape.
        bits: Fractional bits l of the fixed-point representation, which is exact for values below 2^(24 - l)
            (2^(53 - l) in float64). None selects the float form, whose inversion is not exact.

    """

    invertible = True

    def __init__(self, h: nn.Module, bits: int | None = BITS) -> None:
        super().__init__()
        self.module = EulerStep(h)  # gives the weights the names that they have in the plain network
        self.quantise = Quantise(bits)

    @property
    def function(self) -> nn.Module:
        return self.module.h

    def forward(self, value: Value) -> Value:
        x, before = two_streams(as_streams(value))
        if not self.training:
            return self.quantise(x + self._evaluate(x)), x
        gamma = self._drawn(x)
        step = self.quantise((1 - gamma) * x + (1 + gamma) * self._evaluate(x))
        return self._halve(before, gamma) + step, x

    def record(self, inputs: Streams) -> Tape:
        x, before = detach(two_streams(inputs))
        tape, h, gamma = self._record_h(x)
        tape.inputs = x, before
        tape.outputs = self._halve(before, gamma) + self._step(x, h, gamma), x
        return tape

    def keep(self, inputs: Streams) -> Streams:
        return inputs[:1]

    def inversion_state(self, inputs: Streams) -> Streams:
        bits = self.quantise.bits
        return () if bits is None else (pack((inputs[1].detach() * 2**bits).remainder(2) == 1),)

    def recompute(self, kept: Streams) -> Tape:
        return self._record_h(*kept)[0]

    def reconstruct(self, outputs: Streams, state: Streams = ()) -> Tape:
        y, x = detach(two_streams(outputs))
        tape, h, gamma = self._record_h(x)
        before = (y - self._step(x, h, gamma)) / gamma
        if self.quantise.bits is not None:
            before -= unpack(state[0], before.shape).to(before.dtype) / 2**self.quantise.bits
        tape.inputs = x, before
        return tape

    def _record_h(self, x: Tensor) -> tuple[CouplingTape, Tensor, Tensor]:
        """Draw gamma and evaluate h with a graph. Return the tape, the detached result and gamma."""
        gamma, x_leaf = self._drawn(x), leaf(x)
        h = self._evaluate(x_leaf)
        return _BdiaTape(x_leaf, h, gamma), h.detach(), gamma

    def _drawn(self, x: Tensor) -> Tensor:
        """Draw gamma, [B, 1, ...]: +1/2 or -1/2 for each sample, from torch's generator.

        Raises:
            ValueError: If the stage is in evaluation mode, in which gamma is 0.

        """
        if not self.training:
            raise ValueError(
                "a BDIA stage in evaluation mode is a plain block and cannot be inverted; call train() on the stage"
            )
        gamma: Tensor = x.new_empty(len(x), *[1] * (x.dim() - 1)).bernoulli_(0.5) - 0.5
        return gamma

    def _step(self, x: Tensor, h: Tensor, gamma: Tensor) -> Tensor:
        return round_to((1 - gamma) * x + (1 + gamma) * h, self.quantise.bits)

    def _halve(self, before: Tensor, gamma: Tensor) -> Tensor:
        """Return Q[gamma (before + 2^-l s)]. Q changes nothing here: before + 2^-l s is an even multiple of 2^-l."""
        bits = self.quantise.bits
        if bits is None:
            return gamma * before
        odd = (before.detach() * 2**bits).remainder(2)
        halved: Tensor = gamma * (before + odd / 2**bits)
        return halved


class _BdiaTape(CouplingTape):
    """Tape with the graph of h. The rest of the step is differentiated analytically."""

    def __init__(self, leaf: Tensor, residual: Tensor, gamma: Tensor) -> None:
        super().__init__((leaf,), residual, combine_streams)
        self._gamma = gamma

    def gradients(self, grads: Streams, parameters: Sequence[Tensor], *, input_gradient: bool = True) -> Gradients:
        grad, passed = grads
        gamma = self._gamma
        coupled = (1 + gamma) * grad, passed + (1 - gamma) * grad
        grad_inputs, grad_parameters = super().gradients(coupled, parameters, input_gradient=input_gradient)
        return (grad_inputs[0], gamma * grad) if input_gradient else (), grad_parameters


def pack(bits: Tensor) -> Tensor:
    """Pack booleans of any shape into bytes, padding the last with zeros: n booleans -> uint8 [ceil(n / 8)]."""
    flat = bits.flatten().to(torch.uint8)
    flat = nn.functional.pad(flat, (0, -len(flat) % 8)).view(-1, 8)
    return (flat << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, shape: torch.Size) -> Tensor:
    """Invert `pack`: uint8 [ceil(n / 8)] -> booleans of `shape`."""
    bits = packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device) & 1
    return bits.flatten()[: shape.numel()].view(shape).bool()
