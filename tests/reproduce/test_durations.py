"""Durations: what people write is understood, and what is unclear refused."""

import pytest

from reproduce import durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("0.5h", 1800), ("1h0m5s", 3605), (" 2H ", 7200)],
)
def test_parse(text, seconds):
    assert durations.parse(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "m", "0s", "1m1h", "-5m", "5 m", "1d", "1:30"])
def test_no_duration(text):
    with pytest.raises(ValueError, match="no duration above zero: hours, minutes and seconds, such as 2h"):
        durations.parse(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h"), (360_000, "100.0 h")],
)
def test_words(seconds, text):
    assert durations.words(seconds) == text
