"""Check that settings and data agree on all ranks, and raise the same error on all ranks if they do not.

A pipeline has no coordinator: each rank derives the actions of the other ranks from its arguments. A rank with a
different k, seed or data order would train with wrong data, or wait for messages that are never sent. All ranks
therefore exchange and compare their values:

    when a channel is created     the partition
    when a pipeline is created    method, k, staleness, delay compensation, precision, seed, clipping, stages, class and
                                  settings of the optimizer, and the SHA-256 of weights that stages of two ranks share
    at some steps                 the number of micro-batches, the learning rate, the run of a loaded state, and the
                                  SHA-256 of inputs and targets on the ranks of stage 0 and of the head

Values are sent as JSON between CPUs, since unpickling could run code. Every rank receives the values of all ranks,
finds the same differences and raises the same error, so no rank is left waiting.

Internal: used by `petra_core.distributed.process_channel`.
"""

import dataclasses
import enum
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from petra_core.distributed.groups import ChannelError
from petra_core.optimizers import OptimizerFactory, optimizer_of
from petra_core.stages import Stage
from petra_core.tape import Streams
from petra_core.targets import convert_tensors

ABSENT = "nothing"  # value of an entry that exists only on the other rank


def agree(group: dist.ProcessGroup, values: Mapping[str, Any], remedy: str) -> str:
    """Check that values are equal on all ranks of a group. Collective: every rank must call it.

    Args:
        group: The process group.
        values: The values by name. Numbers, strings, sequences, mappings, dataclasses and enums are compared by value,
            other objects by the name of their type. A name that some ranks omit is compared among the other ranks.
        remedy: Advice that ends the error message.

    Returns:
        A digest of the values of all ranks, the same on all ranks.

    Raises:
        ValueError: If two ranks have different values. All ranks raise it, with the same message.
        ChannelError: If a rank has died or does not make this call.

    """
    rows = [json.loads(text) for text in exchange(group, json.dumps(_plain(values)))]
    if found := list(differences(rows)):
        listed = "; ".join(
            f"{name} is {_shorten(a)} on rank {dist.get_global_rank(group, i)} and {_shorten(b)} on rank "
            f"{dist.get_global_rank(group, j)}"
            for name, (i, a), (j, b) in found
        )
        raise ValueError(f"the ranks of this pipeline do not agree: {listed}. {remedy}")
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:12]


def exchange(group: dist.ProcessGroup, text: str) -> list[str]:
    """Return the texts of all ranks of the group, in the order of the ranks. Collective: every rank must call it.

    Raises:
        ChannelError: If a rank has died or does not make this call.

    """
    own = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    sizes = _gather_tensors(group, torch.tensor([len(own)]))
    padded = torch.zeros(int(max(sizes)), dtype=torch.uint8)
    padded[: len(own)] = own
    texts = _gather_tensors(group, padded)
    return [bytes(encoded[: int(size)].tolist()).decode() for encoded, size in zip(texts, sizes, strict=True)]


def _gather_tensors(group: dist.ProcessGroup, own: Tensor) -> list[Tensor]:
    tensors = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    try:
        dist.all_gather(tensors, own, group=group)
    except RuntimeError as error:
        raise ChannelError(
            f"rank {dist.get_rank()} lost another rank while comparing values: that process has died, has timed out, "
            f"or did not make the same calls in the same order ({error})"
        ) from error
    return tensors


Difference = tuple[str, tuple[int, Any], tuple[int, Any]]  # name, (rank, value) of two ranks


def differences(rows: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    """Yield, for each name, the first two ranks whose values differ and the position of the difference.

    Args:
        rows: For each rank, its JSON values by name. A name that a rank omits is not compared on that rank.

    """
    for name in dict.fromkeys(name for row in rows for name in row):
        present = [(rank, row[name]) for rank, row in enumerate(rows) if name in row]
        first, value = present[0]
        for rank, other in present[1:]:
            if other != value:
                place, a, b = _first_difference(name, value, other)
                yield place, (first, a), (rank, b)
                break


def _first_difference(name: str, a: Any, b: Any) -> tuple[str, Any, Any]:
    if isinstance(a, dict) and isinstance(b, dict):
        key = next(key for key in {**a, **b} if a.get(key, ABSENT) != b.get(key, ABSENT))
        return _first_difference(f"{name}.{key}", a.get(key, ABSENT), b.get(key, ABSENT))
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        place = next(place for place, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
        return _first_difference(f"{name}[{place}]", a[place], b[place])
    return name, a, b


def _shorten(value: Any) -> str:
    text = value if value is ABSENT else repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _plain(value: Any) -> Any:
    """Return a value as JSON types. Processes that were given equal values get equal results."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return type(value).__qualname__


def describe_stages(stages: Sequence[Stage], own: range) -> dict[str, Any]:
    """Describe all stages of a pipeline, and the weights of this rank.

    Args:
        stages: The stages.
        own: Stages of this rank. Their weights are those of the pipeline.

    Returns:
        Under the key `stages`, the types of each stage's blocks, and each parameter's shape, dtype and whether it is
        trained. Under its name, the digest of each parameter and buffer of this rank. If stages of two ranks share a
        frozen parameter, it has the name in the first of them, so that the ranks compare it.

    """
    described: list[dict[str, Any]] = []
    names: dict[Tensor, str] = {}
    digests: dict[str, str] = {}
    for index, stage in enumerate(stages):
        kinds = [[[*p.shape], p.dtype, "trained" if p.requires_grad else "frozen"] for p in stage.parameters()]
        described.append({"blocks": [type(part).__name__ for part in stage.parts()], "parameters": kinds})
        for name, tensor in (*stage.named_parameters(), *stage.named_buffers()):
            first = names.setdefault(tensor, f"{name} of stage {index}")
            if index in own:
                digests[first] = digest(tensor)
    return {"stages": described, **digests}


def describe_optimizer(factory: OptimizerFactory | None) -> dict[str, Any]:
    """Return the class and settings of the optimizer that a factory makes, under the key `optimizer`.

    The optimizers of two ranks may differ legitimately, since a factory may choose a different one for each stage. Each
    rank therefore calls its factory with the same two dummy parameters, a matrix and a vector. A factory that fails for
    them, for instance because it looks up its parameters, is not compared: the result is empty.
    """
    if factory is None:
        return {"optimizer": None}
    try:
        named = [("weight", nn.Parameter(torch.zeros(2, 2))), ("bias", nn.Parameter(torch.zeros(2)))]
        optimizer = optimizer_of(factory, 0, named)
        without = ("params", "param_names")
        groups = [{key: value for key, value in g.items() if key not in without} for g in optimizer.param_groups]
    except Exception:  # a factory may raise anything for parameters that it does not know
        return {}
    return {"optimizer": {"class": type(optimizer).__qualname__, "groups": groups}}


def describe_micro_batch(inputs: Streams, target: object) -> dict[str, Any]:
    """Return the dtype, the shape and a prefix of the SHA-256 of each tensor of a micro-batch."""
    return {"inputs": [digest(stream) for stream in inputs], "target": convert_tensors(target, digest)}


def digest(value: Tensor) -> str:
    """Return the dtype, the shape and a prefix of the SHA-256 of a tensor."""
    dense = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    code = hashlib.sha256(dense.flatten().view(torch.uint8).numpy().data).hexdigest()
    return f"{value.dtype} {list(value.shape)} with SHA-256 {code[:12]}"
