"""Declare a comparison of runs as data, and render its sentence, chart, table and finding.

A study mostly asks the same question: how does the mean of a measure over seeds differ from a reference? It is declared
with the columns that form a place, the settings of the reference, a chart, the columns of the table, and templates of
the sentences:

    COMPARISON = Comparison(
        key="study-{run_set}-{dataset}",
        by=("k", "method"),
        reference={"method": "BACKPROPAGATION"},
        headline=Headline("{after} PETRA trails by {differences}.", "Nothing is known.", "{difference} at k = {k}"),
        chart=Chart("Accuracy against k ({setting}).", x="k", layers=[facets.line(), facets.dots()]),
        caption="Test accuracy ({setting}).",
        columns=[label("k", "k = {k}"), method_name(), mean_column("last epoch, %"), change("to backpropagation")],
    )
    EXHIBIT = Exhibit("study", "A study", "Introduction", COMPARISON)

The renderer handles places without runs, numbers of seeds, broken runs, mixed machines, units and plurals, and always
in the same way. Templates may use the settings of a place and these names:

    after        "after 3 epochs"; capitalized at the beginning of a template
    scale        name of the scale
    run_set      what distinguishes the run sets of a data set: scale, precision, text
    dataset      key of the data set
    setting      data set, width, batch, length, learning rate, precision
    differences  the differences to the reference that the headline lists
    difference   one of them
    summary      number, range and verdicts of all differences
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from petra_core import methods
from reproduce.exhibits._exhibit import Sentence, Shown
from reproduce.presentation import facets, tables
from reproduce.presentation.compare import Difference, SeedSample, SeedSamples, format_difference, means, summarize
from reproduce.presentation.content import Figure, Finding, Table
from reproduce.presentation.tables import Field
from reproduce.records.frames import RunSet
from reproduce.text import conjunction

Place = tuple[Any, ...]  # values of the columns `by`


@dataclass(frozen=True)
class Headline:
    """The result in one sentence.

    Attributes:
        known: Template of the sentence, with {differences}.
        unknown: Template of the sentence if there is no difference yet.
        each: Template of a listed difference, with {difference} and settings of its place.
        where: Settings of the places whose differences are listed.
        trailing: Whether the text says "trails by", so that a loss is a positive number.
        unit: Unit after each number; empty if the sentence states it once.

    """

    known: str
    unknown: str
    each: str
    where: Mapping[str, Any] = field(default_factory=dict)
    trailing: bool = False
    unit: str = ""


@dataclass(frozen=True)
class Chart:
    """A figure of the finished runs.

    Attributes:
        caption: Template of its caption.
        x: Column of the x-axis.
        layers: What is drawn.
        where: Settings of the runs that are drawn.
        label: Template of the label of the y-axis. The default is that of the compared measure.
        beside: Makes the layers of one more panel.
        beside_label: Label of the y-axis of that panel.
        panels: Arrangement of the panels.

    """

    caption: str
    x: str
    layers: Sequence[facets.Layer]
    where: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = None
    beside: Callable[["Compared"], Sequence[facets.Layer]] | None = None
    beside_label: str = ""
    panels: facets.Panels = facets.ONE_PANEL


Column = Callable[["Compared"], Field | None]  # None: the column does not apply to these runs


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs with a reference, for each run set. Use it as `each` of an `Exhibit`.

    Attributes:
        key: Template of the key of chart and table, which is unique within the page.
        by: Columns of the runs that form a place. Runs at one place differ only in their seeds.
        reference: Settings of the reference. Its other settings are those of the place that is compared with it.
        caption: Template of the table's caption.
        columns: Columns of the table.
        value: Column of the runs that is averaged.
        rows: Returns the places of the table in order. The default is all places that are planned, in order.
        headline: The result in one sentence.
        chart: Figure of the runs.
        finding: Template of a line of the summary, with {summary}. It is left out without differences.
        notes: Returns the remarks below the table.
        setting: Describes the settings that all runs share.
        names: Returns further names for templates.

    """

    key: str
    by: tuple[str, ...]
    reference: Mapping[str, Any]
    caption: str
    columns: Sequence[Column]
    value: str = "test_accuracy"
    rows: Callable[["Compared"], Iterable[Place]] = lambda compared: compared.samples
    headline: Headline | None = None
    chart: Chart | None = None
    finding: str = ""
    notes: Callable[[RunSet], Sequence[str]] = lambda _: ()
    setting: Callable[[RunSet], str] = RunSet.describe
    names: Callable[[RunSet], Mapping[str, Any]] = lambda _: {}

    def __call__(self, run_set: RunSet) -> Iterator[Shown]:
        """Yield sentence, chart, table and finding."""
        compared = Compared(self, run_set)
        if self.headline:
            yield compared.sentence(self.headline)
        if self.chart:
            yield compared.figure(self.chart)
        yield compared.table()
        if self.finding and (summary := summarize(compared.differences.values())):
            yield Finding(compared.text(self.finding, summary=summary))


@dataclass(frozen=True)
class Compared:
    """The runs of one run set under a comparison."""

    comparison: Comparison
    run_set: RunSet
    _means: dict[str, SeedSamples] = field(default_factory=dict)

    @cached_property
    def samples(self) -> SeedSamples:
        """The compared measure by place, as planned."""
        return self.means(self.comparison.value)

    @cached_property
    def differences(self) -> dict[Place, Difference]:
        """Differences to the reference at all places except the reference."""
        return {place: gap for place in self.samples if (gap := self.difference(place))}

    @cached_property
    def names(self) -> Mapping[str, Any]:
        """Names that all templates may use."""
        comparison, run_set = self.comparison, self.run_set
        names = {"after": run_set.after, "scale": run_set.scale, "run_set": run_set.key, "dataset": run_set.dataset}
        return {**names, "setting": comparison.setting(run_set), **comparison.names(run_set)}

    def means(self, value: str) -> SeedSamples:
        """Return the samples of a column of the runs by place."""
        if value not in self._means:
            self._means[value] = means(self.run_set.runs, value, self.comparison.by)
        return self._means[value]

    def sample(self, place: Place, value: str = "", **changes: Any) -> SeedSample:
        """Return the sample at a place with some settings changed."""
        settings = {**dict(zip(self.comparison.by, place, strict=True)), **changes}
        samples = self.means(value or self.comparison.value)
        sample: SeedSample = samples[tuple(settings[name] for name in self.comparison.by)]
        return sample

    def difference(self, place: Place, value: str = "") -> Difference | None:
        """Return the difference between a place and its reference; None if it is the reference."""
        settings = dict(zip(self.comparison.by, place, strict=True))
        if settings.items() >= self.comparison.reference.items():
            return None
        return self.sample(place, value) - self.sample(place, value, **self.comparison.reference)

    def text(self, template: str, place: Place = (), **more: Any) -> str:
        """Fill in a template."""
        settings = dict(zip(self.comparison.by, place, strict=True)) if place else {}
        filled = template.format(**{**self.names, **settings, **more})
        return filled[:1].upper() + filled[1:] if template.startswith("{after}") else filled

    def sentence(self, headline: Headline) -> Sentence:
        """Return the result in one sentence: the available differences at the chosen places."""
        listed = [
            self.text(
                headline.each, place, difference=format_difference(gap, trailing=headline.trailing, unit=headline.unit)
            )
            for place, gap in sorted(self.differences.items())
            if dict(zip(self.comparison.by, place, strict=True)).items() >= headline.where.items() and gap.estimate
        ]
        template = headline.known if listed else headline.unknown
        return Sentence(self.text(template, differences=conjunction(listed)), known=bool(listed))

    def figure(self, chart: Chart) -> Figure:
        """Return the chart of the finished runs."""
        runs = self.run_set.done
        for column, value in chart.where.items():
            runs = runs[runs[column] == value]
        return facets.facet(
            runs,
            chart.layers,
            key=self.text(self.comparison.key),
            caption=self.text(chart.caption),
            x=chart.x,
            y=facets.Axis(self.comparison.value, None if chart.label is None else self.text(chart.label)),
            panels=chart.panels,
            beside=facets.Beside(chart.beside(self), chart.beside_label) if chart.beside else None,
        )

    def table(self) -> Table:
        """Return the table with a row for each place."""
        return tables.table(
            key=self.text(self.comparison.key),
            caption=self.text(self.comparison.caption),
            rows=self.comparison.rows(self),
            fields=[made for column in self.comparison.columns if (made := column(self))],
            notes=self.comparison.notes(self.run_set),
            grouped=True,
        )


# --- columns


def label(head: str, template: str) -> Column:
    """Return a column of texts made from the settings of a place."""
    return lambda compared: tables.words(head, lambda place: compared.text(template, place))


def setting(head: str, name: str) -> Column:
    """Return a column of a numeric setting."""
    return lambda compared: tables.number(head, lambda place: place[compared.comparison.by.index(name)])


def method_name(head: str = "method") -> Column:
    """Return a column of methods."""
    return lambda compared: tables.method(
        head, lambda place: methods.by_name(place[compared.comparison.by.index("method")])
    )


def mean_column(head: str, value: str = "", group: str = "", **changes: Any) -> Column:
    """Return a column of means over the seeds, of the compared measure or of `value`, with some settings changed."""
    return lambda compared: tables.mean(head, lambda place: compared.sample(place, value, **changes), group=group)


def change(head: str, value: str = "", group: str = "") -> Column:
    """Return two columns: the difference to the reference, in points, and its verdict."""
    return lambda compared: tables.judged_columns(head, lambda place: compared.difference(place, value), group=group)


def plain_change(head: str, value: str, digits: int, group: str = "") -> Column:
    """Return a column of the difference to the reference in a quantity that has no margin, such as a loss."""
    return lambda compared: tables.difference_column(
        head, lambda place: compared.difference(place, value), digits, group=group
    )
