"""Scale: when communication becomes the bottleneck, and when PETRA is worth it against synchronous pipelines.

Two questions of the paper's readers, answered by simulation from measured stage costs (`reproduce.modelling.modelled`):
pipelines of 10 to 1000 devices over links from Ethernet to NVLink, and beside PETRA the pipelines that one would use
instead (`petra_core.prediction.orders`). It needs no cells but those of Table 5.
"""

from collections.abc import Sequence

from petra_core import methods
from petra_core.drawing import gantt
from petra_core.prediction import orders
from petra_core.prediction.simulation import Cost, Link, simulate
from reproduce.modelling import modelled
from reproduce.modelling.modelled import Modelled, seconds_when_full
from reproduce.modelling.rivals import BATCH, MANY, SIMULATED, RivalChain, RivalOutcome
from reproduce.records.results import Results
from reproduce.show.content import (
    MEGABYTE,
    Block,
    Column,
    Entry,
    Figure,
    Finding,
    Section,
    Table,
    Tone,
    none,
    number,
    text,
)

__all__ = ["LINKS", "section"]

GIGABIT = 1e9 / 8  # bytes
#: What is assumed of each kind of link, in each direction; not measured.
LINKS = {
    "1 Gbit/s": Link(latency=50e-6, bandwidth=GIGABIT),
    "10 Gbit/s": Link(latency=50e-6, bandwidth=10 * GIGABIT),
    "100 Gbit/s": Link(latency=10e-6, bandwidth=100 * GIGABIT),
    "PCIe 4": Link(latency=5e-6, bandwidth=32e9),
    "NVLink 4": Link(latency=2e-6, bandwidth=450e9),
}
DEVICES = (10, 18, 50, 1000)
SHOWN = 3  # devices of the Gantt charts
SHOWN_BATCH = 6


def section(results: Results) -> Section:
    """Of the largest scale: links, rivals, charts."""
    known = modelled.timed_networks(results)
    title = "Scale: links, rivals and a thousand devices"
    if not known:
        return Section(
            "scale_study",
            title,
            ["No stage has been timed yet."],
            [Finding("Scale: no stage has been timed yet.", Tone.MISSING)],
            coverage="not run",
        )
    scale = known[-1].run.cell.scale
    own = [m for m in known if m.run.cell.scale == scale]
    network = own[0]
    chains = [RivalChain(network, devices) for devices in DEVICES]
    outcomes = {chain.devices: chain.outcomes() for chain in chains}
    blocks: list[Block] = [
        _introduction(network),
        _links_table(own, chains, scale),
        _RIVALS,
        *(_rivals_table(chain, outcomes[chain.devices], scale) for chain in chains),
        _CHARTS,
        *_charts(network),
    ]
    return Section(
        "scale_study",
        title,
        blocks,
        [_finding(outcomes, scale)],
        coverage=f"modelled from the stage costs of “{scale}”; not measured on so many devices",
    )


def _introduction(m: Modelled) -> str:
    links = "; ".join(
        f"{name}: {1e6 * link.latency:.0f} µs and {link.bandwidth / 1e9:g} GB/s" for name, link in LINKS.items()
    )
    return (
        "Everything here is modelled: simulated event by event from the measured stage costs of Table 5, with k = "
        f"{BATCH} micro-batches of {m.run.cell.batch_size} images an update unless stated. RevNets have one device a "
        "stage. The chains are of equal work on all devices but the first and the last, which have less, so that "
        f"balance hides nothing: on P devices two blocks each, 2P in all, the measured stem and head of {m.title} and "
        "between them its measured reversible stage 1 again and again; the two blocks of a device are one stage. What "
        "is assumed of links, latency and bandwidth "
        f"in each direction: {links}. The devices are as fast as the one that was measured; a device f times as fast "
        "needs f times the bandwidth for the same result."
    )


def _links_table(own: Sequence[Modelled], chains: Sequence[RivalChain], scale: str) -> Table:
    networks: list[tuple[str, tuple[Cost, ...]]] = [(m.title, m.costs) for m in own]
    networks += [(f"chain of {2 * chain.devices} blocks", chain.reconstructing) for chain in chains]
    return Table(
        key="scale-links",
        caption=f"Speed of PETRA over a link, as share of that over links that take no time; modelled, “{scale}”.",
        columns=[
            Column("network", numeric=False),
            Column("devices"),
            Column("ms a micro-batch", hint="over links that take no time"),
            Column("largest message, MB"),
            Column("needs, Gbit/s", hint="below this the largest message takes longer than the slowest stage"),
            *(Column(f"{name}, %", group="speed over") for name in LINKS),
        ],
        rows=[_links_row(name, costs) for name, costs in networks],
        notes=("1 MB = 10⁶ bytes. Messages travel while devices work; each link carries one at a time each way.",),
    )


def _links_row(name: str, costs: tuple[Cost, ...]) -> list[Entry]:
    fastest = seconds_when_full(costs, accumulation=BATCH)
    largest = max(max(cost.up, cost.down) for cost in costs)
    return [
        text(name),
        number(len(costs), 0, tone=Tone.PLAIN),
        number(1e3 * fastest, 1),
        number(largest / MEGABYTE, 1),
        number(largest / fastest / GIGABIT, 2),
        *(number(100 * fastest / seconds_when_full(costs, link, BATCH), 1) for link in LINKS.values()),
    ]


_RIVALS = (
    "Speed is counted against one device that does the whole network and keeps its graphs, divided by the number of "
    "devices: PETRA, which evaluates every function a second time, cannot reach 100 %. What keeps its graphs is "
    "given a backward that is shorter by one forward, the evaluation that it saves. Synchronous pipelines empty at "
    "every update; with 4P micro-batches an update less of their time is lost, and 4P times the micro-batch is a batch "
    "that needs another learning rate. PETRA and delayed gradients never empty, at the price of delayed gradients. "
    "Data parallelism gives every device the whole chain. Interleaving (two blocks a device that are not neighbours) "
    f"and data parallelism take a multiple of P micro-batches: the next above {BATCH}. Peak memory is that of the "
    "device that holds most."
)


def _rivals_table(chain: RivalChain, outcomes: Sequence[RivalOutcome], scale: str) -> Table:
    columns = [
        Column("way", numeric=False),
        Column(f"{BATCH} micro-batches", group="efficiency, %", hint="an update, over links that take no time"),
        Column(f"4P = {4 * chain.devices}", group="efficiency, %", hint="micro-batches an update"),
        *(Column(name, group=f"efficiency with {BATCH}, %") for name in SIMULATED),
        Column("peak memory, MB"),
        Column("delay", hint="micro-batches, at device 0"),
    ]
    return Table(
        key=f"scale-rivals-{chain.devices}",
        caption=f"Training a chain of {2 * chain.devices} blocks on {chain.devices} devices; modelled, “{scale}”.",
        columns=columns,
        rows=[
            [
                text(outcome.title),
                number(100 * outcome.efficiency, 1),
                none("not simulated") if outcome.with_4p is None else number(100 * outcome.with_4p, 1),
                *(
                    none("not simulated") if share is None else number(100 * share, 1)
                    for share in outcome.over_links.values()
                ),
                number(outcome.peak / MEGABYTE, 0),
                number(outcome.delay, 0),
            ]
            for outcome in outcomes
        ],
        notes=("On so many devices fewer ways are simulated.",) if chain.devices >= MANY else (),
    )


def _finding(outcomes: dict[int, list[RivalOutcome]], scale: str) -> Finding:
    claims = []
    for devices, (petra, *others) in outcomes.items():
        synchronous = [outcome for outcome in others if not outcome.delay]
        best = max(synchronous, key=lambda outcome: outcome.efficiency)
        lean = [outcome for outcome in synchronous if outcome.peak <= petra.peak]
        leanest = max(lean, key=lambda outcome: outcome.efficiency, default=None)
        claims.append(
            f"on {devices} devices PETRA reaches {_said(petra)}; without delay {best.title} reaches {_said(best)}, and "
            + (
                f"{leanest.title} {_said(leanest)} in no more memory than PETRA"
                if leanest
                else "nothing fits in as little memory as PETRA"
            )
        )
    return Finding(
        f"Scale: modelled from stage costs of the scale “{scale}”, at {BATCH} micro-batches an update: "
        + "; ".join(claims)
        + ". Efficiency, and memory of the device that holds most."
    )


def _said(outcome: RivalOutcome) -> str:
    return f"{outcome.efficiency:.0%} in {outcome.peak / MEGABYTE:,.0f} MB"


_CHARTS = (
    f"The first micro-batches of five ways on {SHOWN} devices, on one axis of time; synchronous pipelines with "
    f"{SHOWN_BATCH} micro-batches an update, links that take no time. Updates are too short to be seen."
)


def _charts(m: Modelled) -> list[Figure]:
    chain = RivalChain(m, SHOWN)
    rebuilding, keeping = chain.reconstructing, chain.keeping
    one, halves = (1,) * SHOWN, (1,) * (2 * SHOWN)
    drawn = {
        "PETRA": orders.of_method(methods.PETRA, rebuilding, one, 3 * SHOWN, SHOWN_BATCH),
        "GPipe": orders.gpipe(keeping, one, SHOWN_BATCH),
        "1F1B": orders.one_f_one_b(keeping, one, SHOWN_BATCH),
        "Interleaved 1F1B": orders.interleaved(chain.blocks_keeping, halves, SHOWN_BATCH),
        "Zero-bubble (ZB-H1)": orders.zero_bubble(keeping, one, SHOWN_BATCH),
    }

    timelines = {title: simulate(order) for title, order in drawn.items()}
    span = (0.0, timelines["GPipe"].seconds)
    figures = []
    for place, (title, timeline) in enumerate(timelines.items()):
        svg = gantt.to_svg(timeline, title=f"{title}, {SHOWN} devices, modelled", span=span, width=760)
        figures.append(
            Figure(
                f"scale-gantt-{place}",
                title,
                f"Simulated run on {SHOWN} devices.",
                svg,
                f"{title} on {SHOWN} devices, simulated; right, the share of this time in which a device is idle.",
            )
        )
    return figures
