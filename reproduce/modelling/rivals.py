"""Simulate PETRA and competing pipelines on a chain of equal work."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from petra_core import methods
from petra_core.prediction.footprint import merge_footprints, predict_stages
from petra_core.settings import Settings
from petra_core.staleness import per_device
from reproduce.grids import recipes
from reproduce.modelling.full_speed import period
from reproduce.modelling.network import TimedNetwork
from reproduce.modelling.simulation import INSTANT, Link, merge_costs
from reproduce.modelling.strategies import PIPELINES, Sharing, Strategy, evaluate, merge_stages
from reproduce.modelling.synchronous_schedules import CHUNKS, interleaved, zero_bubble

BATCH = max(recipes.ACCUMULATIONS)  # micro-batches per update
GIGABIT = 1e9 / 8  # bytes
SIMULATED = {
    "1 Gbit/s": Link(latency=50e-6, bandwidth=1 * GIGABIT),
    "10 Gbit/s": Link(latency=50e-6, bandwidth=10 * GIGABIT),
}

DATA_PARALLEL = "Data parallelism"

Seconds = Callable[[int, Link], float]  # (micro-batches per update, link) -> seconds per micro-batch

INTERLEAVED = Strategy("Interleaved 1F1B", methods.DELAYED_GRADIENTS, interleaved)
RIVALS = (
    Strategy("PETRA, lockstep", methods.PETRA, sharing=Sharing.EVERYTHING),
    Strategy("PETRA, asynchronous 1F1B", methods.PETRA, sharing=Sharing.EVERYTHING, slack=0),
    Strategy("PipeDream (asynchronous 1F1B)", methods.DELAYED_GRADIENTS, sharing=Sharing.EVERYTHING, slack=0),
    *PIPELINES,
    INTERLEAVED,
    Strategy("Zero-bubble (ZB-H1)", methods.DELAYED_GRADIENTS, zero_bubble, Sharing.EVERYTHING),
)


@dataclass(frozen=True)
class RivalOutcome:
    """Speed, memory and staleness of a rival on a chain.

    Attributes:
        title: Name of the rival.
        efficiency: Speed relative to one device that keeps its graphs, divided by the number of devices, over links
            that take no time, at `BATCH` micro-batches per update.
        with_4p: The same with four micro-batches per update and device.
        over_links: The efficiency at `BATCH` over each of `SIMULATED`.
        peak: Bytes of the device that holds most.
        staleness: Micro-batches between forward and backward at device 0 that see another version of the weights.

    """

    title: str
    efficiency: float
    with_4p: float
    over_links: Mapping[str, float]
    peak: int
    staleness: int


def make_chain(network: TimedNetwork, devices: int) -> TimedNetwork:
    """Return a chain of two blocks per device: the network's stem, its stage 1 repeated, its head.

    Args:
        network: Network with the costs of its stages under PETRA. Its stage 1 is reversible.
        devices: Number of devices P.

    """
    stages = (0, *[1] * (2 * devices - 2), len(network.costs) - 1)
    costs = [network.costs[stage] for stage in stages]
    # A block sends a gradient of the size of its input, and also its input if the block below inverts.
    downs = [0, *(cost.up * (2 if block else 1) for block, cost in enumerate(costs[:-1]))]
    costs = [replace(cost, down=down) for cost, down in zip(costs, downs, strict=True)]
    return replace(network, costs=tuple(costs), invertible=(True,) * len(costs), stages=stages)


def compare(chain: TimedNetwork) -> list[RivalOutcome]:
    """Return the outcomes of all rivals on a chain, PETRA first, data parallelism last."""
    sizes = (CHUNKS,) * (len(chain.costs) // CHUNKS)
    pipelines = (
        _synchronous(chain, rival, sizes) if rival.schedule else _evaluate_pipelined(chain, rival, sizes)
        for rival in RIVALS
    )
    return [*pipelines, _data_parallel(chain, len(sizes))]


def _outcome(
    chain: TimedNetwork, title: str, seconds: Seconds, peak: int, *, staleness: int = 0, multiple: int = 1
) -> RivalOutcome:
    """Return an outcome from the seconds per micro-batch.

    Args:
        chain: The chain.
        title: Name of the rival.
        seconds: Seconds per micro-batch.
        peak: Bytes of the device that holds most.
        staleness: Staleness at device 0.
        multiple: Numbers of micro-batches are rounded up to a multiple of this number.

    """
    devices = len(chain.costs) // CHUNKS

    def efficiency(batch: int, link: Link) -> float:
        batch = _round_up(batch, multiple)
        single = sum(chain.under(methods.DELAYED_GRADIENTS, batch).seconds)
        return single / devices / seconds(batch, link)

    over_links = {name: efficiency(BATCH, link) for name, link in SIMULATED.items()}
    ideal, with_4p = efficiency(BATCH, INSTANT), efficiency(4 * devices, INSTANT)
    return RivalOutcome(title, ideal, with_4p, over_links, peak, staleness)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _synchronous(chain: TimedNetwork, rival: Strategy, sizes: tuple[int, ...]) -> RivalOutcome:
    multiple = len(sizes) if rival is INTERLEAVED else 1
    peak = evaluate(chain, rival, sizes, _round_up(BATCH, multiple)).peak

    def seconds(batch: int, link: Link) -> float:
        return evaluate(chain, rival, sizes, batch, link).seconds

    return _outcome(chain, rival.title, seconds, peak, multiple=multiple)


def _evaluate_pipelined(chain: TimedNetwork, rival: Strategy, sizes: tuple[int, ...]) -> RivalOutcome:
    costs, footprints = merge_stages(chain.under(rival.method, BATCH), sizes)
    vector = per_device((1,) * len(sizes), rival.slack)
    stages = predict_stages(footprints, Settings(method=rival.method, accumulation=BATCH, staleness=vector))
    peak = max(stage.total for stage in stages)

    def seconds(batch: int, link: Link) -> float:
        return period(costs, vector, link, batch)

    return _outcome(chain, rival.title, seconds, peak, staleness=vector[0])


def _data_parallel(chain: TimedNetwork, devices: int) -> RivalOutcome:
    """Return the outcome of data parallelism: every device has all blocks and sums gradients once per batch."""
    keeping = chain.under(methods.DELAYED_GRADIENTS, BATCH)
    whole, cost = merge_footprints(keeping.footprints), merge_costs(keeping.costs, [len(keeping.costs)])[0]

    def seconds(batch: int, link: Link) -> float:
        update = cost.update + all_reduce(link, cost.weights, devices)
        return (cost.forward + cost.backward) / devices + update / batch

    return _outcome(chain, DATA_PARALLEL, seconds, whole.always + whole.kept + whole.lasting, multiple=devices)


def all_reduce(link: Link, size: int, devices: int) -> float:
    """Return the seconds of a ring all-reduce of `size` bytes over `devices` devices (Patarasuk and Yuan 2009).

    It takes 2 (devices - 1) steps, and each transfers size / devices bytes.
    """
    return 2 * (devices - 1) * (link.latency + link.seconds(size) / devices)
