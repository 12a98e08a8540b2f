"""Test the texts of samples and differences."""

from reproduce.presentation.compare import (
    SeedSample,
    SeedSamples,
    differences,
    format_difference,
    list_differences,
    summarize,
)
from reproduce.presentation.content import MINUS, TIMES, Role
from reproduce.presentation.tables import difference_entries, mean_entry


def test_mean_entry_states_seeds_and_unfinished_runs() -> None:
    """An entry contains the mean, the number of seeds and the state of the other runs."""
    states = {0: "done", 1: "done", 2: "diverged (epoch 2 of 3)", 3: "not run"}
    entry = mean_entry(SeedSample({0: 60.0, 1: 61.0}, states, {2: "diverged"}))
    assert entry.text.endswith("(2 of 4; 1 diverged)")
    assert entry.raw == 60.5
    assert entry.hint == "seed 2: diverged (epoch 2 of 3); seed 3: not run"
    entry = mean_entry(SeedSample({}, {0: "1 of 3 epochs", 1: "not run", 2: "not run"}))
    assert (entry.text, entry.role) == (f"1 of 3 epochs; 2 {TIMES} not run", Role.MISSING)
    assert mean_entry(SeedSample()).text == "not run"


def test_removing_a_seed_keeps_states_of_the_others() -> None:
    """A sample without a seed keeps the values, states and problems of the others."""
    states = {0: "done", 1: "done", 2: "diverged (epoch 1 of 3)"}
    others = SeedSample({0: 60.0, 1: 61.0}, states, {2: "diverged"}, {2: "loss not finite"}).without([0])
    assert (others.values, others.seeds, others.ended) == ({1: 61.0}, "1 of 2; 1 diverged", True)


def test_differences_state_verdict_runs_and_machines() -> None:
    """Differences have a verdict, the runs of both sides and a mark for different machines."""
    low, base = SeedSample({0: 57.0, 1: 57.02}), SeedSample({0: 60.0, 1: 60.02}, machines={0: "CPU"})
    differences = {"low": low - base, "none": SeedSample() - base, "small": base - base}
    rendered = {
        key: [entry.text for entry in difference_entries(difference)] for key, difference in differences.items()
    }
    assert [words[1] for words in rendered.values()] == ["lower", "", "equal"]
    assert rendered["none"] == ["not comparable yet", ""]
    assert rendered["low"][0].endswith("(2 + 2)")
    assert difference_entries(differences["low"])[1].role is Role.OURS, "a loss of accuracy is no alarm"
    assert summarize(differences.values()) == f"2 differences from {MINUS}3.0 to 0.0 points: 1 equal, 1 lower"
    assert summarize([differences["none"], None]) == ""
    mixed = SeedSample({0: 1.0}, machines={0: "GPU"}) - base
    assert difference_entries(mixed)[0].text.endswith("(1 + 2)‡")
    assert format_difference(mixed).endswith("‡ (1 + 2 runs)")
    assert format_difference(SeedSample({0: 1.0}) - SeedSample({0: 2.0})).endswith("(one run each)")
    assert format_difference(low - base, trailing=True).startswith("3.0")


def test_differences_leave_out_the_reference() -> None:
    """Every place is compared with the reference that has its other settings."""
    samples = SeedSamples(
        {
            ("PETRA", 1): SeedSample({0: 50.0}),
            ("BACKPROPAGATION", 1): SeedSample({0: 60.0}),
            ("PETRA", 4): SeedSample({0: 70.0}),
        }
    )
    gaps = differences(samples, ["method", "k"], method="BACKPROPAGATION")
    assert list(gaps) == [("PETRA", 1), ("PETRA", 4)]
    known = gaps["PETRA", 1].estimate
    assert known is not None
    assert known.mean == -10.0
    assert gaps["PETRA", 4].estimate is None
    listed = list_differences({f"at k = {k}": gap for (_, k), gap in gaps.items()}, trailing=True, unit="points")
    assert listed == ["10.0 points (one run each) at k = 1"]
