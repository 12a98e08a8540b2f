"""Down-sample invertibly by pixel-unshuffle.

A RevNet lowers the resolution with strided convolutions. These lose information, so each such stage has to buffer its
inputs until the backward, and these few buffers are most of PETRA's memory. i-RevNet (Jacobsen et al. 2018) moves each
2x2 neighbourhood of pixels into channels instead,

    [B, C, H, W] -> [B, 4C, H/2, W/2]

which is a permutation of the elements. Its inverse is bitwise exact. The transpose of a permutation is its inverse, so
the backward applies the inverse to the gradient. The stage therefore has no parameters, records no graph and stores no
input.

As a separate stage of the pipeline it would add a tick and staleness; `petra_core.stages.merge` merges it with the
block that follows.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from petra_core.errors import check_int
from petra_core.stages import Stage
from petra_core.tape import Gradients, Streams, Tape, Value, as_streams, as_value, detach


class _PermutationTape(Tape):
    """Tape without a graph. The backward applies the inverse permutation to the gradient."""

    def __init__(self, inputs: Streams, outputs: Streams, inverse: Callable[[Streams], Streams]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._inverse = inverse

    def gradients(self, grads: Streams, parameters: Sequence[Tensor], *, input_gradient: bool = True) -> Gradients:
        grad_inputs = detach(self._inverse(grads)) if input_gradient else ()
        return grad_inputs, (None,) * len(parameters)


class PixelUnshuffleStage(Stage):
    """Stage that pixel-unshuffles each stream: [B, C, H, W] -> [B, C·r², H/r, W/r].

    Args:
        factor: Factor r by which height and width shrink.

    """

    invertible = True

    def __init__(self, factor: int = 2) -> None:
        super().__init__()
        self.factor = check_int("factor", factor, 1)

    @property
    def function(self) -> nn.Module:
        return self

    def forward(self, value: Value) -> Value:
        """Map each stream [B, C, H, W] to [B, C·r², H/r, W/r].

        Raises:
            ValueError: If a stream is not four-dimensional, or `factor` does not divide its height and width.

        """
        streams = as_streams(value)
        for stream in streams:
            if stream.dim() != 4 or stream.shape[2] % self.factor or stream.shape[3] % self.factor:
                raise ValueError(
                    f"PixelUnshuffleStage({self.factor}) takes [batch, channels, height, width] with height and width "
                    f"divisible by {self.factor}, got {tuple(stream.shape)}; pad or resize the images, or use fewer "
                    f"down-samplings"
                )
        return as_value(tuple(F.pixel_unshuffle(stream, self.factor) for stream in streams))

    def record(self, inputs: Streams) -> Tape:
        inputs = detach(inputs)
        return _PermutationTape(inputs, as_streams(self(as_value(inputs))), self._inverse)

    def keep(self, inputs: Streams) -> Streams:
        return ()

    def recompute(self, kept: Streams) -> Tape:
        return _PermutationTape((), (), self._inverse)

    def reconstruct(self, outputs: Streams, state: Streams = ()) -> Tape:
        return _PermutationTape(detach(self._inverse(outputs)), (), self._inverse)

    def _inverse(self, streams: Streams) -> Streams:
        return tuple(F.pixel_shuffle(stream, self.factor) for stream in streams)

    def extra_repr(self) -> str:
        return f"factor={self.factor}"
