"""Scale: when communication becomes the bottleneck, and when PETRA is worth it against synchronous pipelines.

Two questions of the paper's readers, answered by simulation from measured stage costs (`reproduce.modelling.modelled`):
pipelines of 10 to 1000 devices over links from Ethernet to NVLink, and beside PETRA the pipelines that one would use
instead (`petra_core.prediction.orders`). It needs no cells but those of Table 5.
"""

from collections.abc import Iterator, Sequence

from petra_core import methods
from petra_core.drawing import gantt
from petra_core.prediction import orders
from petra_core.prediction.simulation import Cost, Link, simulate
from reproduce.exhibits._exhibit import Coverage, Exhibit, Sentence, Shown
from reproduce.exhibits.table5 import largest
from reproduce.modelling.modelled import Modelled, seconds_when_full, timed_networks
from reproduce.modelling.rivals import BATCH, MANY, SIMULATED, RivalChain, RivalOutcome
from reproduce.records.frames import Frames
from reproduce.show.content import MEGABYTE, Entry, Figure, Finding, Table, Tone, none
from reproduce.show.tables import Field, amount, number, table, words

__all__ = ["EXHIBIT", "LINKS"]

GIGABIT = 1e9 / 8  # bytes
#: What is assumed of each kind of link, in each direction; not measured.
LINKS = SIMULATED | {
    "100 Gbit/s": Link(latency=10e-6, bandwidth=100 * GIGABIT),
    "PCIe 4": Link(latency=5e-6, bandwidth=32e9),
    "NVLink 4": Link(latency=2e-6, bandwidth=450e9),
}
DEVICES = (10, 18, 50, 1000)
SHOWN = 3  # devices of the Gantt charts
SHOWN_BATCH = 6
RIVALS = (
    "Speed is counted against one device that does the whole network and keeps its graphs, divided by the number of "
    "devices: PETRA, which evaluates every function a second time, cannot reach 100 %. What keeps its graphs is "
    "given a backward that is shorter by one forward, the evaluation that it saves. Synchronous pipelines empty at "
    "every update; with 4P micro-batches an update less of their time is lost, and 4P times the micro-batch is a batch "
    "that needs another learning rate. PETRA and delayed gradients never empty, at the price of delayed gradients. "
    "Data parallelism gives every device the whole chain. Interleaving (two blocks a device that are not neighbours) "
    f"and data parallelism take a multiple of P micro-batches: the next above {BATCH}. Peak memory is that of the "
    "device that holds most."
)
CHARTS = (
    f"The first micro-batches of five ways on {SHOWN} devices, on one axis of time; synchronous pipelines with "
    f"{SHOWN_BATCH} micro-batches an update, links that take no time. Updates are too short to be seen."
)


def whole(frames: Frames) -> Iterator[Shown]:
    """Of the largest scale at which stages were timed: links, rivals, charts."""
    sheet = largest(frames)
    if sheet is None:
        yield "No stage has been timed yet."
        yield Finding("Scale: no stage has been timed yet.", Tone.MISSING)
        return
    own = timed_networks(sheet)
    chains = [RivalChain(own[0], devices) for devices in DEVICES]
    outcomes = {chain.devices: chain.outcomes() for chain in chains}
    yield Coverage(f"modelled from the stage costs of “{sheet.scale}”; not measured on so many devices")
    yield from _findings(outcomes, sheet.scale)
    yield _introduction(own[0])
    networks = {m.title: m.costs for m in own}
    networks |= {f"chain of {2 * chain.devices} blocks": chain.reconstructing for chain in chains}
    yield _links(networks, sheet.scale)
    yield RIVALS
    for devices, own_outcomes in outcomes.items():
        yield _rivals(devices, own_outcomes, sheet.scale)
    yield CHARTS
    yield from _charts(own[0])


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


def _links(networks: dict[str, tuple[Cost, ...]], scale: str) -> Table:
    """Rows are name, costs of the stages, seconds for a micro-batch over links that take no time, largest message."""

    def over(name: str, link: Link) -> Field:
        return amount(
            f"{name}, %", lambda row: 100 * row[2] / seconds_when_full(row[1], link, BATCH), 1, group="speed over"
        )

    needs = "below this the largest message takes longer than the slowest stage"
    return table(
        key="scale-links",
        caption=f"Speed of PETRA over a link, as share of that over links that take no time; modelled, “{scale}”.",
        rows=[
            (name, costs, seconds_when_full(costs, accumulation=BATCH), max(max(cost.up, cost.down) for cost in costs))
            for name, costs in networks.items()
        ],
        fields=[
            words("network", lambda row: row[0]),
            number("devices", lambda row: len(row[1])),
            amount("ms a micro-batch", lambda row: 1e3 * row[2], 1, hint="over links that take no time"),
            amount("largest message, MB", lambda row: row[3] / MEGABYTE, 1),
            amount("needs, Gbit/s", lambda row: row[3] / row[2] / GIGABIT, 2, hint=needs),
            *(over(name, link) for name, link in LINKS.items()),
        ],
        notes=("1 MB = 10⁶ bytes. Messages travel while devices work; each link carries one at a time each way.",),
    )


def _rivals(devices: int, outcomes: Sequence[RivalOutcome], scale: str) -> Table:
    def share(value: float | None) -> float | Entry:
        return none("not simulated") if value is None else 100 * value

    def over(name: str) -> Field:
        group = f"efficiency with {BATCH}, %"
        return amount(name, lambda outcome: share(outcome.over_links[name]), 1, group=group)

    group, ideal = "efficiency, %", "an update, over links that take no time"
    return table(
        key=f"scale-rivals-{devices}",
        caption=f"Training a chain of {2 * devices} blocks on {devices} devices; modelled, “{scale}”.",
        rows=outcomes,
        fields=[
            words("way", lambda outcome: outcome.title),
            amount(f"{BATCH} micro-batches", lambda outcome: 100 * outcome.efficiency, 1, group=group, hint=ideal),
            amount(f"4P = {4 * devices}", lambda o: share(o.with_4p), 1, group=group, hint="micro-batches an update"),
            *map(over, SIMULATED),
            amount("peak memory, MB", lambda outcome: outcome.peak / MEGABYTE, 0),
            amount("delay", lambda outcome: outcome.delay, 0, hint="micro-batches, at device 0"),
        ],
        notes=("On so many devices fewer ways are simulated.",) if devices >= MANY else (),
    )


def _findings(outcomes: dict[int, list[RivalOutcome]], scale: str) -> Iterator[Shown]:
    claims: list[str] = []
    for devices, (petra, *others) in outcomes.items():
        synchronous = [outcome for outcome in others if not outcome.delay]
        best = max(synchronous, key=lambda outcome: outcome.efficiency)
        lean = [outcome for outcome in synchronous if outcome.peak <= petra.peak]
        leanest = max(lean, key=lambda outcome: outcome.efficiency, default=None)
        if not claims:
            yield Sentence(
                f"Efficiency modelled on {devices} devices: PETRA {_said(petra)}; the best without delay, "
                f"{best.title}, {_said(best)}."
            )
        claims.append(
            f"on {devices} devices PETRA reaches {_said(petra)}; without delay {best.title} reaches {_said(best)}, and "
            + (
                f"{leanest.title} {_said(leanest)} in no more memory than PETRA"
                if leanest
                else "nothing fits in as little memory as PETRA"
            )
        )
    yield Finding(
        f"Scale: modelled from stage costs of the scale “{scale}”, at {BATCH} micro-batches an update: "
        + "; ".join(claims)
        + ". Efficiency, and memory of the device that holds most."
    )


def _said(outcome: RivalOutcome) -> str:
    return f"{outcome.efficiency:.0%} in {outcome.peak / MEGABYTE:,.0f} MB"


def _charts(m: Modelled) -> list[Figure]:
    chain = RivalChain(m, SHOWN)
    reconstructing, keeping = chain.reconstructing, chain.keeping
    one, halves = (1,) * SHOWN, (1,) * (2 * SHOWN)
    drawn = {
        "PETRA": orders.of_method(methods.PETRA, reconstructing, one, 3 * SHOWN, SHOWN_BATCH),
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


EXHIBIT = Exhibit("scale_study", "Scale: links, rivals and a thousand devices", whole=whole)
