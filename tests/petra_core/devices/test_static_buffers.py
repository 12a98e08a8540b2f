"""Test that the fixed buffers of tensors that outlive a tick are not overwritten early, and that few tensors move."""

from collections import deque

import pytest
import torch

from petra_core.devices.static_buffers import PLACES, StaticBuffers, period


def number(value: float) -> torch.Tensor:
    return torch.full((2,), float(value))


def test_tensor_moves_only_before_its_buffer_is_reused() -> None:
    """A tensor that is passed on is copied only shortly before its buffer is written again."""
    buffers = StaticBuffers(PLACES)
    [first] = buffers.keep("a", (number(0),), 3)
    places = [first.data_ptr()]
    for tick in range(1, 2 * PLACES):
        buffers.step = tick
        [again] = buffers.keep("b", (first,), 3)
        assert (again is first) == (tick < PLACES - 1)
        first = again
        places.append(buffers.keep("a", (number(tick),), 3)[0].data_ptr())
        if tick == PLACES - 1:
            break
    assert first.tolist() == [0, 0]  # in its second buffer
    assert len(set(places)) == PLACES


@pytest.mark.parametrize(("rounds", "most"), [(PLACES, 5), (8, 3), (12, 2), (60, 2)])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 13])
def test_queue_keeps_values_with_few_copies(length: int, rounds: int, most: int) -> None:
    """A new value is copied. It later moves once if its buffer has as many places as the queue needs."""
    buffers, queue = StaticBuffers(rounds), deque([number(-1)] * length, maxlen=length)
    buffers.allow_external(queue)
    moves = []
    for tick in range(length + 2 * rounds):
        buffers.step = tick
        if tick == length + rounds:
            buffers.freeze()
        queue.append(number(tick))
        before = [tensor.data_ptr() for tensor in queue]
        for place, tensor in enumerate(queue):
            [queue[place]] = buffers.keep(place, (tensor,), place)
        moves.append(sum(tensor.data_ptr() != pointer for tensor, pointer in zip(queue, before, strict=True)))
        expected = [max(-1, tick - length + 1 + place) for place in range(length)]
        assert [int(tensor[0]) for tensor in queue] == expected
    assert max(moves[length + rounds :]) <= most


def test_slices_are_not_copied_and_copies_keep_layout() -> None:
    """A slice of a fixed buffer is not copied, and a copy has the memory format of its source."""
    buffers = StaticBuffers(PLACES)
    [image] = buffers.keep("image", (torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),), 3)
    assert image.is_contiguous(memory_format=torch.channels_last)
    half = image[:1]
    buffers.step = 1
    assert buffers.keep("half", (half,), 3)[0] is half


def test_buffer_is_copied_to_and_unrehearsed_one_is_refused() -> None:
    assert [period(k) for k in (1, 2, 3, 4, 5, 6, 8, 16, 32)] == [12, 12, 12, 12, 20, 12, 16, 16, 32]
    buffers = StaticBuffers(PLACES)
    buffer = buffers.keep_fixed("loss", number(1))
    assert buffers.keep_fixed("loss", buffer) is buffer
    assert buffers.keep_fixed("loss", number(2)) is buffer
    assert buffer.tolist() == [2, 2]
    buffers.freeze()
    with pytest.raises(AssertionError, match="no static buffer was made for \\('late', 0, 0\\)"):
        buffers.keep("late", (number(1),), 3)
