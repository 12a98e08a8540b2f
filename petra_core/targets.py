"""Targets: the second argument of a loss, after the output of the network.

A target is a tensor, a tuple of tensors, a dict of tensors, or None for a loss without a target. It is sent to the head
as a flat tuple of tensors. The keys of the structure are the same for all micro-batches of a run, but the order of a
dict may differ between them. Its tensors are therefore sorted by name, and its keys keep the order that the loss sees:

    target                     keys             tensors
    tensor                     None             (tensor,)
    (a, b), or the list [a, b] (0, 1)           (a, b)
    {"class": b, "box": a}     ("class", "box") (a, b)
    None                       ()               ()
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

Target = Tensor | Sequence[Tensor] | Mapping[str, Tensor] | None
Keys = tuple[int | str, ...] | None


def flatten(target: Any) -> tuple[Keys, tuple[Tensor, ...]]:
    """Return the keys and the tensors of a target.

    Raises:
        TypeError: If it is not a target.

    """
    if isinstance(target, Tensor):
        return None, (target,)
    if target is None:
        return (), ()
    items: list[Any] = []
    keys: tuple[Any, ...] = ()
    if isinstance(target, Mapping):
        keys = tuple(target)
        items = [target[key] for key in sorted(keys, key=str)]
    elif isinstance(target, tuple | list):
        keys, items = tuple(range(len(target))), list(target)
    named = not isinstance(target, Mapping) or all(isinstance(key, str) for key in keys)
    if items and named and all(isinstance(item, Tensor) for item in items):
        return keys, tuple(items)
    inside = f" of {[type(item).__name__ for item in items]}" if items else ""
    raise TypeError(
        f"the target must be a tensor, a tuple of tensors, a dict of tensors by name, or None for a loss without a "
        f"target; got a {type(target).__name__}{inside}; give a number as torch.tensor(number)"
    )


def unflatten(keys: Keys, tensors: Sequence[Tensor]) -> Target:
    """Return the target with these keys and tensors."""
    if keys is None:
        return tensors[0]
    if not keys:
        return None
    if isinstance(keys[0], int):
        return tuple(tensors)
    named = dict(zip(sorted(map(str, keys)), tensors, strict=True))
    return {str(key): named[str(key)] for key in keys}


def convert_tensors(target: Any, convert: Callable[[Tensor], Any]) -> Any:
    """Convert each tensor of a target."""
    keys, tensors = flatten(target)
    return unflatten(keys, [convert(tensor) for tensor in tensors])
