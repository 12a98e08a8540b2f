"""Scale: when communication becomes the bottleneck, and when PETRA is worth it against synchronous pipelines.

No machine here has ten devices, let alone a thousand. So both are answered by simulation from measured stage costs
(`reproduce.modelling.rivals`), which takes no cells but those of Table 5.
"""

from collections.abc import Iterator, Mapping, Sequence

from petra_core import methods
from petra_core.prediction.simulation import Cost, Link
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.exhibits.table5 import largest
from reproduce.modelling.modelled import seconds_when_full, timed_networks
from reproduce.modelling.rivals import BATCH, DATA_PARALLEL, RIVALS, SIMULATED, RivalChain, RivalOutcome
from reproduce.records.frames import Frames
from reproduce.show import facets, plots
from reproduce.show.content import GIGABYTE, MEGABYTE, Entry, Finding, Table, Tone, none
from reproduce.show.facets import Look, facet
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
#: The colour says what is kept for a backward, the mark in which order.
LOOKS = {r.title: Look(r.title, plots.COLOURS[r.method], None, m) for r, m in zip(RIVALS, "oDss^^Pv", strict=True)}
LOOKS[DATA_PARALLEL] = Look(DATA_PARALLEL, plots.COLOURS[methods.BACKPROPAGATION], None, "X")


def whole(frames: Frames) -> Iterator[Shown]:
    """Of the largest scale at which stages were timed: rivals and links."""
    sheet = largest(frames)
    if sheet is None:
        yield Finding("Scale: no stage has been timed yet.", Tone.MISSING)
        return
    own = timed_networks(sheet)
    chains = [RivalChain(own[0], devices) for devices in DEVICES]
    outcomes = {chain.devices: chain.outcomes() for chain in chains}
    yield (
        f"Modelled, event by event, from the measured stage costs of Table 5, with k = {BATCH} micro-batches of "
        f"{own[0].run.cell.batch_size} images an update unless stated. On P devices lie 2P blocks, two each: the stem "
        f"and head of {own[0].title} and between them its stage 1 again and again, so that balance hides nothing. "
        "Devices are as fast as the one that was measured; one f times as fast needs f times the bandwidth."
    )
    yield facet(
        (
            {"devices": devices, "way": way.title, "GB": way.peak / GIGABYTE, "efficiency": 100 * way.efficiency}
            for devices, ways in outcomes.items()
            for way in ways
        ),
        [facets.dots(size=8)],
        key="scale-rivals",
        title="Efficiency and memory of ways to train on many devices",
        caption=f"Efficiency over links that take no time, {BATCH} micro-batches an update, against the memory of the "
        f"device that holds most; modelled, “{sheet.scale}”.",
        x="GB",
        y="efficiency",
        hue="way",
        looks=LOOKS,
        col="devices",
        titles=lambda _, devices: f"{devices:,} devices",
        xlog=True,
        xlabel="peak memory, GB",
        ticks=(0.1, 1, 10, 100),
        ylabel="efficiency, %",
        legend="mark",
    )
    yield _rivals(outcomes, sheet.scale)
    networks = {m.title: m.costs for m in own}
    networks |= {f"chain of {2 * chain.devices} blocks": chain.reconstructing for chain in chains}
    yield _links(networks, sheet.scale)
    yield from _findings(outcomes, sheet.scale)


def _links(networks: Mapping[str, tuple[Cost, ...]], scale: str) -> Table:
    """Rows are name, costs of the stages, seconds for a micro-batch over links that take no time, largest message."""

    def over(name: str, link: Link) -> Field:
        hint = f"{1e6 * link.latency:.0f} µs and {link.bandwidth / 1e9:g} GB/s"

        def share(row: tuple[str, tuple[Cost, ...], float, int]) -> float:
            return 100 * row[2] / seconds_when_full(row[1], link, BATCH)

        return amount(f"{name}, %", share, 1, group="speed over", hint=hint)

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
        notes=("RevNets have one device a stage. Messages travel while devices work, one at a time each way.",),
    )


def _rivals(outcomes: Mapping[int, Sequence[RivalOutcome]], scale: str) -> Table:
    def share(value: float | None) -> float | Entry:
        return none("not simulated") if value is None else 100 * value

    def over(name: str) -> Field:
        group = f"efficiency with {BATCH}, %"
        return amount(name, lambda row: share(row[1].over_links[name]), 1, group=group)

    group, ideal = "efficiency, %", "an update, over links that take no time"
    return table(
        key="scale-rivals",
        caption=f"Training a chain of 2P blocks on P devices; modelled, “{scale}”.",
        rows=[(devices, outcome) for devices, of_chain in outcomes.items() for outcome in of_chain],
        fields=[
            words("P", lambda row: f"P = {row[0]:,}"),
            words("way", lambda row: row[1].title),
            amount(f"{BATCH} micro-batches", lambda row: 100 * row[1].efficiency, 1, group=group, hint=ideal),
            amount("4P", lambda row: share(row[1].with_4p), 1, group=group, hint=f"micro-batches {ideal}"),
            *map(over, SIMULATED),
            amount("peak memory, MB", lambda row: row[1].peak / MEGABYTE, 0, hint="of the device that holds most"),
            amount("delay", lambda row: row[1].delay, 0, hint="micro-batches, at device 0"),
        ],
        notes=(
            "Efficiency: speed over that of one device which keeps its graphs, divided by P; PETRA evaluates every "
            "function twice and cannot reach 100 %. What keeps its graphs has a backward shorter by a forward; "
            "interleaving and data parallelism take a multiple of P micro-batches. A batch of 4P micro-batches needs "
            "another learning rate.",
        ),
        grouped=True,
    )


def _findings(outcomes: Mapping[int, Sequence[RivalOutcome]], scale: str) -> Iterator[Shown]:
    def said(outcome: RivalOutcome) -> str:
        return f"{outcome.title} {outcome.efficiency:.0%} in {outcome.peak / MEGABYTE:,.0f} MB"

    claims = []
    for devices, (petra, *others) in outcomes.items():
        exact = sorted((outcome for outcome in others if not outcome.delay), key=lambda outcome: -outcome.efficiency)
        lean = [said(outcome) for outcome in exact if outcome.peak <= petra.peak] or ["nothing"]
        reached = f"on {devices} devices: {said(petra)}; the best without delay, {said(exact[0])}"
        claims.append((reached, f"in no more memory than PETRA, {lean[0]}"))
    yield Sentence(f"Efficiency modelled {claims[0][0]}.")
    yield Finding(
        "Scale: efficiency, and memory of the device that holds most, modelled from stage costs of the scale "
        f"“{scale}”, at {BATCH} micro-batches an update: {'; '.join('; '.join(claim) for claim in claims)}."
    )


EXHIBIT = Exhibit("scale_study", "Scale: links, rivals and a thousand devices", whole=whole)
