"""The benchmark of PaReprop runs and leaves a record; its table has published gains where they belong, and marked."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import noxfile
from benchmarks import pareprop as script
from petra_core.methods import BACKPROPAGATION, PAREPROP, REVERSIBLE_BACKPROPAGATION
from reproduce import published
from reproduce.exhibits import pareprop
from reproduce.exhibits._exhibit import section
from reproduce.published import Mark, pareprop_row
from reproduce.records.benchmarks import ALLOCATED, LARGEST_FOUND, THROUGHPUT, Benchmark, read
from reproduce.records.frames import Frames
from reproduce.records.results import Results
from reproduce.show.content import Section, Table, Tone
from tests.reproduce.records.test_benchmark_records import benchmark

TINY = "--networks revvit_micro2 --batches 2 --size 8 --length 8 --rounds 3 --budget 1 --threads 2 --device cpu"
RUN = script.ParepropRun("revvit_micro2", size=8, length=8, batch=16, method=PAREPROP)


@pytest.fixture(autouse=True)
def same_threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def shown(*records: Benchmark) -> Section:
    return section(pareprop.EXHIBIT, Frames(Results((), (), records)))


def tables(found: Section) -> dict[str, Table]:
    return {block.key: block for block in found.blocks if isinstance(block, Table)}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    """A tiny run, as it is read from its record."""
    root, threads = tmp_path_factory.mktemp("records"), torch.get_num_threads()
    found = script.main([*TINY.split(), "--find", "--record", "--records", str(root)])
    torch.set_num_threads(threads)
    assert read(root / "benchmarks" / "pareprop.json") == found
    return found


def test_it_measures_every_method(measured: Benchmark) -> None:
    assert {len(s.values) for s in measured.series if s.quantity == THROUGHPUT} == {3}
    assert [comparison.aim for comparison in measured.comparisons] == ["", "", ""], "aims are for GPUs"
    largest = {(s.name, s.quantity): s.values[0] for s in measured.series if s.group == "revvit_micro2"}
    assert len(largest) == 6
    assert all(value > 0 for value in largest.values())


def test_a_record_is_shown_with_where_it_ran(measured: Benchmark) -> None:
    found = shown(measured)
    throughput, batches = (tables(found)[f"pareprop-{name}"] for name in ("throughput", "batches"))
    assert [row[0].text for row in (*throughput.rows, *batches.rows)] == ["revvit_micro2"] * 2
    assert "not to be compared with the published gains" in throughput.caption
    assert "2 threads of" in found.coverage
    (finding,) = found.findings
    assert "of 1 setting" in finding.text


def test_what_does_not_fit_is_left_out_and_the_rest_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of three batches the largest ran out of memory, and with it went the times of the others."""

    def stepping(run: script.ParepropRun, device: torch.device, *, side_by_side: bool = True) -> Any:
        if run.batch > (2 if run.method is BACKPROPAGATION else 4):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return lambda: None

    monkeypatch.setattr(script, "stepping", stepping)
    words = TINY.replace("--batches 2", "--batches 2 4") + f" --find --record --records {tmp_path}"
    found = script.main(words.split())
    fits = {(s.group, s.name) for s in found.series if s.quantity == ALLOCATED}
    two, four = (f"revvit_micro2, batch {batch}" for batch in (2, 4))
    assert fits == {*((two, m.title) for m in script.CONTESTANTS), *((four, m.title) for m in script.CONTESTANTS[1:])}
    assert {s.group for s in found.series if s.quantity == THROUGHPUT} == {two}
    assert {s.values[0] for s in found.series if s.quantity == LARGEST_FOUND} == {2, 4}
    assert found.notes == (f"{four}: not timed, since the networks of all methods do not fit at once.",)
    assert [row[1].text for row in tables(shown(found))["pareprop-throughput"].rows] == ["2"]


def test_times_in_which_memory_was_asked_for_anew_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter([3, 4])
    monkeypatch.setattr(script, "stepping", lambda run, device: lambda: None)
    monkeypatch.setattr(script, "retries", lambda device: next(asked))
    with pytest.raises(MemoryError, match="given back and asked for anew"):
        script.timed_rounds(RUN, torch.device("cpu"), threads=2, rounds=1)


@pytest.mark.parametrize("method", script.CONTESTANTS, ids=str)
def test_what_is_foretold_is_near_what_the_allocator_gives_out(method: Any) -> None:
    torch.set_num_threads(1)
    run = dataclasses.replace(RUN, method=method)
    assert script.allocated(run, torch.device("cpu")) == pytest.approx(script.predicted_peak(run), rel=0.25)


def test_a_second_graph_is_foretold_and_largest_batches_are_found_from_a_line() -> None:
    plain = dataclasses.replace(RUN, method=REVERSIBLE_BACKPROPAGATION)
    assert script.predicted_peak(plain) < script.predicted_peak(RUN)
    limit = script.predicted_peak(dataclasses.replace(RUN, batch=37))
    assert abs(script.by_a_line(RUN, limit) - 37) <= 1


def test_unknown_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no network 'revvit_nano'; there are revvit_micro"):
        dataclasses.replace(RUN, network="revvit_nano").stages()


def test_an_odd_number_of_threads_cannot_be_shared(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script.main(["--threads", "3"])
    assert "--threads 3: PaReprop shares them between two" in capsys.readouterr().err


def test_published_gains_keep_their_marks() -> None:
    rows = published.read("pareprop")
    assert {row.mark for row in rows if row["gain_percent"]} == {Mark.SECOND_HAND}
    assert {row["family"] for row in rows if row.mark is Mark.UNKNOWN} == {"RevRoBERTa"}
    assert all(bool(row["gain_percent"] or row["statement"]) == (row.mark is not Mark.UNKNOWN) for row in rows)
    exact = [pareprop_row(network, exactly=True) for network in ("revswin_giant", "revswin_micro", "revvit_tiny")]
    assert [row and row.number("gain_percent") for row in exact] == [19.3, None, None]
    found = tables(shown())["pareprop-published"]
    assert len(found.rows) == len(rows)
    assert {row[-1].mark for row in found.rows} == {Mark.SECOND_HAND, Mark.UNKNOWN}


def test_without_a_record_it_says_so() -> None:
    found = shown(benchmark())  # one of something else
    assert list(tables(found)) == ["pareprop-published"]
    assert found.findings[0].tone is Tone.MISSING
    assert found.coverage.endswith("not run")


def renamed(measured: Benchmark, name: str) -> Benchmark:
    """The same of another network."""
    series, comparisons = (
        tuple(dataclasses.replace(one, group=one.group.replace("revvit_micro2", name)) for one in every)
        for every in (measured.series, measured.comparisons)
    )
    return dataclasses.replace(measured, series=series, comparisons=comparisons)


@pytest.mark.parametrize(
    ("network", "entry", "mark"),
    [
        ("revswin_tiny", "+4.8", Mark.SECOND_HAND),
        ("revswin_micro", "\N{EN DASH}", None),
        ("revvit_base", "about equal", Mark.SECOND_HAND),
        ("revroberta_base", "unknown", Mark.UNKNOWN),
    ],
)
def test_a_published_gain_stands_beside_its_own_size_alone(
    network: str, entry: str, mark: Mark | None, measured: Benchmark
) -> None:
    table = tables(shown(renamed(measured, network)))["pareprop-throughput"]
    place = [column.name for column in table.columns].index("published")
    (row,) = table.rows
    assert (row[place].text, row[place].mark) == (entry, mark)


def test_the_session_measures_then_writes_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noxfile, "install", lambda *_: None)

    class Session:
        def __init__(self, *posargs: str) -> None:
            self.posargs = list(posargs)
            self.commands: list[tuple[str, ...]] = []

        def run(self, *command: str, **_: object) -> None:
            self.commands.append(command[2:])

    def commands(*options: str) -> list[tuple[str, ...]]:
        session = Session(*options)
        noxfile.reproduce_pareprop.func(session)
        return session.commands

    assert commands() == [("benchmarks.pareprop", "--record"), ("reproduce", "report")]
    own = ("--record", "pareprop-h200", "--records", "here")
    assert commands(*own) == [("benchmarks.pareprop", *own), ("reproduce", "report", "--records", "here")]
    assert commands("--help") == [("benchmarks.pareprop", "--record", "--help")]
