"""Scale: find when communication becomes the bottleneck, and when PETRA is better than synchronous pipelines.

No machine here has ten devices. Both questions are therefore answered by simulation from measured stage costs
(`reproduce.modelling.rivals`), which needs only the cells of Table 5.
"""

from collections.abc import Iterator, Sequence

from pandas import DataFrame

from petra_core import methods
from petra_core.prediction.partition import Cost
from petra_core.staleness import lockstep
from reproduce.exhibits._exhibit import Sentence, Shown, declare, notes, text_of
from reproduce.exhibits.table5 import largest
from reproduce.modelling.full_speed import period
from reproduce.modelling.network import read_timed_networks
from reproduce.modelling.rivals import BATCH, DATA_PARALLEL, GIGABIT, RIVALS, SIMULATED, compare, make_chain
from reproduce.modelling.simulation import INSTANT, Link, merge_costs
from reproduce.presentation import facets, plots
from reproduce.presentation.content import GIGABYTE, MEGABYTE, Finding, Role
from reproduce.presentation.facets import Look
from reproduce.presentation.tables import Field, amount, amounts, number, table, words
from reproduce.records.frames import Frames

#: Assumptions for each kind of link, in each direction; not measured.
LINKS = SIMULATED | {
    "100 Gbit/s": Link(latency=10e-6, bandwidth=100 * GIGABIT),
    "PCIe 4, 32 GB/s": Link(latency=5e-6, bandwidth=32e9),
    "NVLink 4, 450 GB/s": Link(latency=2e-6, bandwidth=450e9),
}
DEVICES = (10, 18, 50)
#: The colour shows what is kept for a backward, the mark shows the order.
LOOKS = {r.title: Look(r.title, plots.COLOURS[r.method], None, m) for r, m in zip(RIVALS, "ohDss^^Pv", strict=True)}
LOOKS[DATA_PARALLEL] = Look(DATA_PARALLEL, plots.COLOURS[methods.BACKPROPAGATION], None, "X")


def whole(frames: Frames) -> Iterator[Shown]:
    """Yield rivals and links, modelled from the largest scale at which stages were timed."""
    run_set = largest(frames)
    if run_set is None:
        yield Finding("Scale: no stage has been timed yet.", Role.MISSING)
        return
    timed, modelled = read_timed_networks(run_set), f"modelled, “{run_set.scale}”"
    timing = f"Stages were timed on {timed[0].machine}; for a faster device a link has to be as much faster."
    chains = {devices: make_chain(timed[0], devices) for devices in DEVICES}
    ways = DataFrame(
        {"devices": devices, **vars(way), **way.over_links}
        for devices, chain in chains.items()
        for way in compare(chain)
    )
    for devices, outcomes in list(ways.groupby("devices"))[:1]:
        petra, best = outcomes.iloc[1], outcomes[outcomes["staleness"] == 0].nlargest(1, "efficiency").iloc[0]
        yield Sentence(
            f"In the model, over links that take no time, {petra['title']} is {100 * petra['efficiency']:.0f} % "
            f"efficient on {devices} devices ({petra['peak'] / MEGABYTE:,.0f} MB on the fullest), and "
            f"{best['title'].lower()} {100 * best['efficiency']:.0f} % ({best['peak'] / MEGABYTE:,.0f} MB)."
        )
    yield (text_of("scale_study", "setting", batch=BATCH, network=timed[0]))
    yield facets.facet(
        ways.assign(peak=ways["peak"] / GIGABYTE, efficiency=100 * ways["efficiency"]),
        [facets.dots(size=8)],
        key="scale-rivals",
        caption=text_of("scale_study", "rivals", modelled=modelled, batch=BATCH),
        x=facets.Axis("peak", label="peak memory, GB", log=True, ticks=(0.1, 1, 10, 100)),
        y=facets.Axis("efficiency", label="efficiency, %"),
        hue="title",
        looks=LOOKS,
        panels=facets.Panels(col="devices", titles=lambda _, devices: f"{devices:,} devices"),
        legend="mark",
    )

    def efficiency(name: str, column: str, group: str) -> Field:
        return amount(name, lambda way: 100 * way[column], 1, group=group)

    ideal, with_batch = "efficiency, links that take no time, %", f"efficiency with {BATCH}, %"
    yield table(
        key="scale-rivals",
        caption=f"Training a chain of 2P blocks on P devices; {modelled}.",
        rows=ways.to_dict("records"),
        fields=[
            words("P", lambda way: f"P = {way['devices']:,}", heading=True),
            words("way", lambda way: way["title"]),
            efficiency(f"{BATCH} micro-batches", "efficiency", ideal),
            efficiency("4P", "with_4p", ideal),
            *(efficiency(name, name, with_batch) for name in SIMULATED),
            amount("peak memory, MB", lambda way: way["peak"] / MEGABYTE, 0, hint="of the device that holds most"),
            amount("staleness", lambda way: way["staleness"], 0, hint="micro-batches, at device 0"),
        ],
        notes=[*notes("scale_study", "rivals"), timing],
    )

    def seconds(costs: Sequence[Cost], link: Link) -> float:
        return period(costs, lockstep(len(costs)), link, BATCH)

    def shares(row: tuple[str, Sequence[Cost], float, int]) -> dict[str, float]:
        return {name: 100 * row[2] / seconds(row[1], link) for name, link in LINKS.items()}

    networks: list[tuple[str, Sequence[Cost]]] = [(m.title, m.costs) for m in timed]
    networks += [
        (f"chain of {2 * devices} blocks", merge_costs(chain.costs, [2] * devices)) for devices, chain in chains.items()
    ]
    latencies = ", ".join(f"{1e6 * link.latency:.0f}" for link in LINKS.values())
    needs = "below this the largest message takes longer than the slowest stage"
    yield table(
        key="scale-links",
        caption=f"Speed of PETRA in lockstep over a link, as share of that over links that take no time; {modelled}.",
        rows=[
            (name, costs, seconds(costs, INSTANT), max(max(cost.up, cost.down) for cost in costs))
            for name, costs in networks
        ],
        fields=[
            words("network", lambda row: row[0]),
            number("devices", lambda row: len(row[1])),
            amount("ms a micro-batch", lambda row: 1e3 * row[2], 1, hint="over links that take no time"),
            amount("largest message, MB", lambda row: row[3] / MEGABYTE, 1),
            amount("needs, Gbit/s", lambda row: row[3] / row[2] / GIGABIT, 2, hint=needs),
            *amounts({name: f"{name}, %" for name in LINKS}, shares, 1, group="speed over"),
        ],
        notes=[
            f"Messages travel while devices work, one at a time each way; assumed latencies: {latencies} µs.",
            timing,
        ],
    )


EXHIBIT = declare("scale_study", whole=whole)
