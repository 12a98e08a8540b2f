"""Samples are subtracted seed by seed; a family is judged as one."""

from reproduce.show.compare import Sample, counted, family_note, judge, reported
from reproduce.show.content import MINUS, TIMES, Tone
from reproduce.show.statistics import Estimate
from reproduce.show.statistics import judge as judge_estimates
from reproduce.show.tables import judged_entries, mean_entry


def test_a_difference_is_over_the_seeds_that_both_have_and_a_sample_again() -> None:
    ours, theirs = Sample({0: 60.0, 1: 62.0, 2: 50.0}), Sample({0: 61.0, 1: 61.0, 3: 0.0})
    gap = ours - theirs
    assert gap.values == {0: -1.0, 1: 1.0}
    assert (gap - Sample({1: 3.0})).values == {1: -2.0}
    assert ours.less(10.0).values == {0: 50.0, 1: 52.0, 2: 40.0}
    assert (ours - Sample()).estimate is None


def test_an_entry_says_how_many_seeds_and_what_became_of_the_others() -> None:
    states = {0: "done", 1: "done", 2: "diverged (epoch 2 of 3)", 3: "not run"}
    entry = mean_entry(Sample({0: 60.0, 1: 61.0}, states, {2: "diverged"}))
    assert entry.text.endswith("(2 of 4; 1 diverged)")
    assert entry.raw == 60.5
    assert entry.hint == "seed 2: diverged (epoch 2 of 3); seed 3: not run"
    entry = mean_entry(Sample({}, {0: "1 of 3 epochs", 1: "not run", 2: "not run"}))
    assert (entry.text, entry.tone) == (f"1 of 3 epochs; 2 {TIMES} not run", Tone.MISSING)
    assert mean_entry(Sample()).text == "not run"


def test_without_a_seed_all_that_is_known_of_the_others_stays() -> None:
    states = {0: "done", 1: "done", 2: "diverged (epoch 1 of 3)"}
    others = Sample({0: 60.0, 1: 61.0}, states, {2: "diverged"}, {2: "loss not finite"}).without(0)
    assert (others.values, others.seeds, others.ended) == ({1: 61.0}, "1 of 2; 1 diverged", True)


def test_verdicts_of_a_family_are_counted_and_marked() -> None:
    clear, chance = Estimate(-3.0, -3.01, -2.99, 3), Estimate(-1.0, -1.9, -0.1, 3)
    family = {"clear": clear, "chance": chance, "none": None, "small": Estimate(0.1, -0.2, 0.4, 3)}
    less = judge_estimates(family)
    shown = {key: [entry.text for entry in judged_entries(j)] for key, j in less.items()}
    assert [words[1] for words in shown.values()] == ["differ", "differ †", "", "agree"]
    assert shown["none"] == ["no pair", ""]
    assert judged_entries(less["chance"])[1].tone is Tone.ALERT
    assert "after Holm's correction" in judged_entries(less["chance"])[1].hint
    assert counted(less.values()) == "3 comparisons: agree 1, differ 2 (1 after Holm's correction for 3)"
    assert family_note(less.values()).startswith(counted(less.values()))
    assert family_note([]) == "No comparison can be made yet."
    assert reported(less.values()) == f"{counted(less.values())}, means from {MINUS}3.0 to +0.1 points"
    assert reported([less["none"]]) == ""


def test_one_call_is_one_family() -> None:
    """Of one comparison p is below 5 %; of the same among ten that say nothing it is chance."""
    gap = Sample({0: -1.0, 1: -1.5, 2: -1.2})
    assert judge({"alone": gap})["alone"].stands
    noise = {number: Sample({0: 1.0, 1: -1.0, 2: 0.1 * number}) for number in range(10)}
    assert not judge({"gap": gap, **noise})["gap"].stands
