"""Table 5: speed of PETRA against reversible backpropagation without overlap, with one device per stage.

The published values were measured on J devices. Without that many devices, times are modelled: runs are simulated event
by event from the cost of each stage on one device (`reproduce.modelling`). Modelled values are always marked.
"""

from collections.abc import Iterator, Mapping, Sequence

from reproduce import published as published_tables
from reproduce.cells import catalogue
from reproduce.cells.networks import title_of_convolutional
from reproduce.exhibits._exhibit import Sentence, Shown, declare, notes, run_sets, text_of
from reproduce.grids.plans.table5 import PAPER_WIDTH, SETTINGS
from reproduce.modelling.network import TimedNetwork, read_timed_networks
from reproduce.modelling.strategies import DEVICES, Arrangement, arrange
from reproduce.presentation import facets
from reproduce.presentation.content import MEGABYTE, TIMES, Entry, Table, missing
from reproduce.presentation.tables import amount, entry, number, published_value, table, words
from reproduce.published import Row
from reproduce.records.frames import Frames, RunSet
from reproduce.text import conjunction

PAPER_BATCH = SETTINGS["paper"][1]
SPEEDUP = "speedup_over_reversible_backpropagation"
PARTS = {"forward": "#56b4e9", "backward": "#0072b2", "update": "#e69f00"}


def largest(frames: Frames) -> RunSet | None:
    """Return the largest scale at which stages were timed, or None."""
    return next((run_set for run_set in run_sets(frames, "table5") if not run_set.done.empty), None)


def whole(frames: Frames) -> Iterator[Shown]:
    """Yield the published values next to modelled ones for networks of the paper's size, and ways to use devices.

    Stages of that size may have been timed at any scale; the largest one is shown.
    """
    timed_sets = run_sets(frames, "table5")
    states = timed_sets[0].runs.set_index("model")["state"]
    timed = [m for run_set in reversed(timed_sets) for m in read_timed_networks(run_set)]
    modelled = {m.cell.model: m for m in timed if (m.cell.width, m.cell.batch_size) == (PAPER_WIDTH, PAPER_BATCH)}

    def speedup(row: Row) -> float | Entry:
        model = modelled.get(row["model"])
        return model.speedup if model else missing(states[row["model"]])

    used = conjunction([f"“{scale}”" for scale in dict.fromkeys(m.cell.scale for m in modelled.values()) or ("paper",)])
    yield table(
        key="table5",
        caption=text_of("table5", "published", batch=PAPER_BATCH, width=PAPER_WIDTH, scales=used),
        rows=published_tables.read("table5_speed"),
        fields=[
            words("network", lambda row: title_of_convolutional(row["model"])),
            number("J", lambda row: row.number("devices")),
            entry("published", lambda row: published_value(row, SPEEDUP, TIMES), group="speed-up"),
            amount("measured on J devices", lambda _: None, 2, group="speed-up", without="not run"),
            amount("modelled", speedup, 2, group="speed-up"),
        ],
    )
    if run_set := largest(frames):
        yield _arrangements(run_set)


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield stage costs and times."""
    timed = read_timed_networks(run_set)
    if not timed:
        return
    first, cell = timed[0], timed[0].cell
    setting = text_of("table5", "setting", cell=cell, images=catalogue.by_name(cell.dataset).title)
    rows = published_tables.read("table5_speed") if cell.width == PAPER_WIDTH else []
    stated = {row["model"]: row for row in rows}
    chosen = [m for m in timed if m is first or m.cell.model in stated]
    listed = [
        f"{m.speedup:.1f} times for {m.title}, J = {len(m.costs)}"
        + (f" ({published.mark.value}: {published[SPEEDUP]})" if (published := stated.get(m.cell.model)) else "")
        for m in chosen
    ]
    yield Sentence(text_of("table5", "sentence", listed=conjunction(listed), missed=_state_missed(chosen, stated)))
    parts = run_set.parts()
    yield facets.facet(
        parts.assign(ms=1e3 * parts["value"]),
        [facets.stack(sideways=False, mean=True)],
        key=f"costs-{run_set.key}",
        caption=text_of("table5", "costs", setting=setting),
        x="stage",
        y=facets.Axis("ms", label="ms"),
        hue="of",
        looks={part: facets.Look(part, colour) for part, colour in PARTS.items()},
        panels=facets.Panels(col="network", share=(False, False)),
        legend="area",
    )
    at_pace = "for the same pace, if quick neighbours share a device"
    yield table(
        key=f"table5-{run_set.key}",
        caption=f"Times for a micro-batch, modelled from measured stage costs ({setting}).",
        rows=timed,
        fields=[
            words("network", lambda m: m.title),
            number("J", lambda m: len(m.costs)),
            amount("without overlap, ms", lambda m: 1e3 * m.seconds_without_overlap, 1),
            amount("PETRA, ms", lambda m: 1e3 * m.seconds_in_lockstep, 1),
            amount("speed-up", lambda m: m.speedup, 2),
            amount("stage j", lambda m: m.seconds.index(max(m.seconds)), 0, group="slowest stage"),
            amount("share of all work, %", lambda m: 100 * max(m.seconds) / sum(m.seconds), 1, group="slowest stage"),
            amount("idle, %", lambda m: 100 * m.idle, 1, hint="mean over the devices, while the slowest works"),
            amount("devices enough", lambda m: m.devices_enough, 0, hint=at_pace),
        ],
        notes=[f"Measured on {'; '.join(f'{m.machine} ({m.title})' for m in timed)}."],
    )


def _state_missed(chosen: Sequence[TimedNetwork], stated: Mapping[str, Row]) -> str:
    """State that the published speed-up falls with J while the modelled one grows, if that is so."""
    both = [(m.speedup, stated[m.cell.model].number(SPEEDUP)) for m in chosen if m.cell.model in stated]
    if len(both) < 2 or both[-1][0] <= both[0][0] or both[-1][1] >= both[0][1]:
        return ""
    return (
        " The published speed-up falls with J where the model grows: the model misses what limits the paper's machines."
    )


def _arrangements(run_set: RunSet) -> Table:
    hint = "micro-batches from forward to backward at stage 0"

    def idle(way: Arrangement) -> float:
        return 100 * (1 - sum(way.network.seconds) / (len(way.sizes) * way.outcome.seconds))

    return table(
        key="table5-arrangements",
        caption=text_of("table5", "arrangements", devices=DEVICES, run_set=run_set),
        rows=[way for network in read_timed_networks(run_set) for way in arrange(network)],
        fields=[
            words("network", lambda way: way.network.title, heading=True),
            words("way", lambda way: way.name),
            words("stages of each device", lambda way: ", ".join(map(str, way.sizes))),
            number("devices", lambda way: len(way.sizes)),
            number("k", lambda way: way.network.accumulation),
            amount("staleness", lambda way: way.outcome.staleness, 0, hint=hint),
            amount("speed-up", lambda way: way.network.seconds_without_overlap / way.outcome.seconds, 2),
            amount("idle, %", idle, 1, hint="mean over the devices"),
            amount("peak memory, MB", lambda way: way.outcome.peak / MEGABYTE, 0, hint="of the device that holds most"),
        ],
        notes=notes("table5", "arrangements"),
    )


EXHIBIT = declare("table5", each, whole)
