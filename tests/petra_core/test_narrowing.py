"""Messages in bf16: half the bytes, the same rounding for every number of processes, and a known error of inversion."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from petra_core import Pipeline, methods, models
from petra_core.methods import Method
from petra_core.narrowing import narrowed, widened
from petra_core.prediction.memory import predict
from petra_core.worker import Backward
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.properties import assert_bytes_are_as_predicted, assert_resumes_bitwise

pytestmark = pytest.mark.convolutions

BF16 = torch.bfloat16
#: Half the distance between two numbers of bf16, relative to the larger of them: 8 bits of mantissa, one implied.
ROUNDING = 2.0**-8 / 2


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(2, 3, 8, 8, generator=generator), torch.randint(0, 10, (2,), generator=generator)


def chain(blocks: int, messages: torch.dtype | None, method: Method = methods.PETRA, **options: object) -> Pipeline:
    torch.manual_seed(0)
    stages = models.chain(blocks, num_classes=10, channels=4)
    return Pipeline(stages, method, messages=messages, seed=0, **options)  # type: ignore[arg-type]


def test_only_floating_point_is_narrowed() -> None:
    streams = (torch.tensor([1.0, 1 + 2**-9]), torch.tensor([7]))
    narrow = narrowed(streams, BF16)
    assert narrow is not None
    assert [stream.dtype for stream in narrow] == [BF16, torch.int64]
    assert_bitwise_equal(widened(narrow, torch.float32), (torch.tensor([1.0, 1.0]), torch.tensor([7])))
    assert narrowed(streams, None) is streams
    assert widened(streams, None) is streams
    with pytest.raises(ValueError, match=r"as they are \(None\) or as torch.bfloat16, got torch.float16"):
        chain(2, torch.float16)
    x, _ = batch()
    assert_bitwise_equal(chain(3, BF16).evaluate(x), chain(3, None).evaluate(x))


@pytest.mark.parametrize("method", methods.PAPER, ids=str)
def test_messages_wait_in_bf16_and_are_accounted_as_predicted(method: Method) -> None:
    x, y = batch()
    stages = models.chain(3, num_classes=10, channels=4)
    full = predict(stages, method, x, y, optimizer=toys.sgd)
    pipeline, predicted = assert_bytes_are_as_predicted(stages, method, (x, y), 1, toys.sgd, messages=BF16)
    for narrow, wide in zip(predicted[1:-1], full[1:-1], strict=True):  # below the stem come micro-batches
        assert 2 * narrow.peak["messages"] == wide.peak["messages"]
    for worker in pipeline.state_dict()["workers"]:
        sent = [*worker["from_above"], *(worker["from_below"] if worker is not None else ())]
        for message in sent:
            for tensor in (*(message["streams"] or ()), *(message["gradients"] or ())):
                assert tensor.dtype == BF16


def reconstructed(messages: torch.dtype | None, blocks: int) -> tuple[dict[int, tuple[Tensor, ...]], list[Tensor]]:
    """Inputs of the stages as the backwards of one micro-batch had them, and as they were in its forward."""
    inputs: dict[int, tuple[Tensor, ...]] = {}

    def look(backward: Backward) -> None:
        assert backward.inputs is not None
        inputs[backward.stage] = tuple(stream.float() for stream in backward.inputs)

    pipeline = chain(blocks, messages, after_backward=look)
    x, y = batch()
    toys.train(pipeline, [(x, y)])
    streams: tuple[Tensor, ...] = (x,)
    true = {}
    for index, stage in enumerate(pipeline.stages[:-1]):
        true[index] = streams
        with torch.no_grad():
            value = stage(streams[0] if len(streams) == 1 else streams)
        streams = widened(narrowed(value, messages), torch.float32) or ()
    errors = {i: [(a - b).abs().max() / b.abs().max() for a, b in zip(inputs[i], true[i], strict=True)] for i in true}
    return inputs, [torch.stack(errors[index]) for index in sorted(errors)]


def test_the_stream_that_passes_through_is_reconstructed_exactly_and_the_other_up_to_one_rounding() -> None:
    _, errors = reconstructed(BF16, 3)  # stem 0, reversible 1, 2, 3, head 4
    assert errors[0] == 0  # kept
    x, x_tilde = errors[3]
    assert x == 0
    assert 0 < x_tilde <= 2 * ROUNDING  # of an output up to twice as large as the input
    assert errors[1].max() > 0
    assert max(error.max() for error in reconstructed(None, 3)[1]) < 1e-5, "without rounding there is no such error"


def test_it_trains_and_goes_on_from_a_checkpoint_bitwise(tmp_path: Path) -> None:
    """In float64 too: a stage widens to the dtype of its own weights."""

    def make(messages: torch.dtype | None = BF16) -> Pipeline:
        net = toys.network(6, dropout=0.2)
        return Pipeline(net, methods.PETRA, accumulation=2, optimizer=toys.sgd, seed=1, messages=messages)

    data = toys.batches(30)
    assert_resumes_bitwise(make, data, 17, tmp_path)
    assert toys.train(make(None), data) != toys.train(make(), data)
