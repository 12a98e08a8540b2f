"""Test the README's results: they follow the committed records, and a README without a place for them is an error."""

from pathlib import Path

import pytest

from reproduce.exhibits import claims
from reproduce.grids import scales
from reproduce.grids.grid import grid_of
from reproduce.records.frames import Frames
from reproduce.records.results import read
from reproduce.report.headline import first_screen
from reproduce.report.readme import BEGIN, END, PICTURES, ReadmeError, contents, update

ROOT = Path(__file__).resolve().parents[3]
RECORDS = ROOT / "reports" / "records"


def test_readme_is_current(tmp_path):
    """README.md and its pictures equal those made from the committed records."""
    frames = Frames(read(RECORDS, [cell for name in scales.SCALES for cell in grid_of(name)]))
    answers = first_screen(frames)
    assert len(answers) == 3
    copy = tmp_path / "README.md"
    copy.write_bytes((ROOT / "README.md").read_bytes())
    update(copy, *contents(answers, claims.judge(frames)))

    remedy = "run `python -m reproduce report --readme README.md` and commit what it changes"
    assert copy.read_text() == (ROOT / "README.md").read_text(), remedy
    ours, committed = (
        {file.name: file.read_bytes() for file in (root / PICTURES).iterdir()} for root in (tmp_path, ROOT)
    )
    assert ours == committed, remedy


PLACE = (BEGIN.format("a"), END.format("a"))


def test_update_replaces_only_the_results(tmp_path):
    """An update replaces the text between the markers and the pictures of the same names, and removes no file."""
    readme = tmp_path / "README.md"
    readme.write_text("before\n{}\nold\n{}\nafter\n".format(*PLACE))
    pictures = tmp_path / PICTURES
    pictures.mkdir(parents=True)
    (pictures / "mine.svg").write_text("mine")
    update(readme, {"a": "first"}, {"new.svg": b"<svg/>"})
    update(readme, {"a": "new\N{NO-BREAK SPACE}%"}, {"new.svg": b"<svg></svg>"})
    assert readme.read_text() == "before\n{}\n\nnew\N{NO-BREAK SPACE}%\n\n{}\nafter\n".format(*PLACE)
    assert {file.name: file.read_text() for file in pictures.iterdir()} == {
        "mine.svg": "mine",
        "new.svg": "<svg></svg>",
    }


@pytest.mark.parametrize("text", ["", PLACE[0], PLACE[1], PLACE[1] + PLACE[0]], ids=["none", "no end", "end", "order"])
def test_update_refuses_a_readme_without_a_place(tmp_path, text):
    """A README without both markers in order raises a ReadmeError and is not changed."""
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(ReadmeError, match="has no place for the a: put the lines"):
        update(readme, {"a": "text"}, {"a.svg": b""})
    assert readme.read_text() == text
    assert not (tmp_path / "docs").exists()


def test_update_refuses_a_readme_that_is_not_text(tmp_path):
    (tmp_path / "README.md").write_bytes("\n".join((*PLACE, "ä")).encode("latin-1"))
    with pytest.raises(ReadmeError, match=r"README\.md is not text in UTF-8"):
        update(tmp_path / "README.md", {"a": "text"}, {})
