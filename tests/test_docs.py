"""Test the Markdown files at the top and the pages of docs/: examples run, and everything that they name exists."""

import pkgutil
import re
import shlex
from pathlib import Path

import click
import pytest

from petra_core import methods
from petra_core.methods import Inputs
from reproduce.commands.cli import main as reproduce
from reproduce.drawing.__main__ import main as draw
from tests.command_lines import check_module
from tests.conftest import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}

#: Paths that the commands create.
GENERATED = ("reports/index.html", "reports/benchmarks")
#: Options of other programs.
FOREIGN = {"--max-restarts", "--nnodes", "--rdzv-endpoint", "--shutdown-timeout", "--bench"}


def matches(pattern: str) -> list[tuple[str, str]]:
    """Return (page, group of the pattern) for every match in a page."""
    return [(page, match) for page, text in TEXTS.items() for match in re.findall(pattern, text, re.M | re.S)]


def code(text: str) -> list[str]:
    """Return the lines of fenced blocks except Python's, with continuation lines joined, and inline code."""
    fenced = r"^```(\w*)\n(.+?)^```"
    blocks = [block for language, block in re.findall(fenced, text, re.M | re.S) if language != "python"]
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return lines + re.findall(r"`([^`\n]+)`", re.sub(fenced, "", text, flags=re.M | re.S))


CODE = [(page, line) for page, text in TEXTS.items() for line in code(text)]
#: Command that receives the arguments after `--`, by name of the session.
SESSIONS: dict[str, str] = dict(re.findall(r"^\| `([\w-]+)` \| .+ \| (.*?) ?\|$", TEXTS["README.md"], re.M))


def test_pages_are_linked_and_lines_fit() -> None:
    """README.md links every page, and only tables and long commands exceed 120 characters a line."""
    linked = re.findall(r"\]\(([\w./-]+)\)", TEXTS["README.md"])
    assert {page for page in TEXTS if page != "README.md"} <= set(linked)
    lines = [(page, line) for page, text in TEXTS.items() for line in text.splitlines() if len(line) > 120]
    assert not [line for line in lines if not line[1].startswith(("|", "{ ", ".venv/bin/uv "))]


@pytest.mark.parametrize(("page", "example"), matches(r"^```python\n(.+?)^```"))
def test_examples_run(page: str, example: str) -> None:
    """Every Python block of the pages runs without an error."""
    exec(compile(example, page, "exec"), {})


def test_links_have_targets() -> None:
    """Every relative link leads to an existing file and heading."""
    for page, target in matches(r"\]\((?!https?://)([^)]+)\)"):
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), (page, target)
        headings = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.M) if anchor else []
        anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, (page, target)


def test_commands_exist_with_their_options() -> None:
    """Every documented command exists and accepts the documented options."""
    wrong, count = [], 0
    for page, line in CODE:
        for match in re.finditer(r"(?:nox -s (?P<session>\S+)(?: -- (?P<rest>.+))?|(?<= )-m (?P<module>.+))$", line):
            count += 1
            try:
                if match["module"]:
                    check_module(shlex.split(match["module"]))
                elif match["session"] != "NAME":
                    target = shlex.split(SESSIONS[match["session"]].strip("`"))
                    if target[:2] == ["python", "-m"]:
                        check_module([*target[2:], *shlex.split(match["rest"] or "")])
            except (AssertionError, KeyError, click.UsageError) as error:
                wrong.append(f"{page}: {line}: {error!r}")
    assert not wrong, "\n".join(wrong)
    assert count > 50


def test_options_in_code_spans_exist() -> None:
    """Every option at the beginning of a code span exists in some command."""
    commands = [*reproduce.commands.values()]
    commands += [part for group in commands if isinstance(group, click.Group) for part in group.commands.values()]
    parameters = [parameter for command in commands for parameter in command.params]
    known = {option for parameter in parameters for option in parameter.opts} | FOREIGN
    known |= {getattr(parameter, "old", "") for parameter in parameters}  # the changelog names former spellings
    programs = (ROOT / "reproduce" / "drawing" / "__main__.py", ROOT / "tests" / "bitwise.py")
    for source in (*(ROOT / "benchmarks").rglob("*.py"), *programs):
        known |= set(re.findall(r'"(--[\w-]+)"', source.read_text("utf-8")))
    named = [(page, match[0]) for page, line in CODE if (match := re.match(r"--[\w-]+", line))]
    assert named
    assert not [(page, option) for page, option in named if option not in known]


def test_named_files_and_modules_exist() -> None:
    """Every path and module in a code span exists, except generated files."""
    wrong = []
    for page, line in CODE:
        if re.fullmatch(r"(?:petra_core|reproduce|benchmarks|tests|docs|reports|\.ci)/[\w/.-]*", line):
            path = line.removesuffix("/")
            if "NAME" not in path and path not in GENERATED and not (ROOT / path).exists():
                wrong.append(f"{page}: {line}")
        elif re.fullmatch(r"(?:petra_core|reproduce|benchmarks|models)(?:\.\w+)+", line):
            try:  # a module, or something in one
                pkgutil.resolve_name(f"petra_core.{line}" if line.startswith("models.") else line)
            except (AttributeError, ImportError):
                wrong.append(f"{page}: {line}")
    assert not wrong, "\n".join(wrong)


def test_method_table_matches_engine() -> None:
    """The methods and systems in README.md match those of petra_core.methods."""
    table = TEXTS["README.md"].split("| method |")[1].split("\n\n")[0]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table.splitlines()[2:]]
    inputs = {Inputs.GRAPH: "in the kept graph", Inputs.STASH: "stashed, recomputed"}
    for method, (name, source, weights, pipelined, staleness) in zip(methods.ALL, rows, strict=True):
        assert name == f"`{method.name}`"
        concurrently = ", concurrently with the backward of the stage above" if method.overlapped else ""
        assert source == inputs.get(method.inputs, "reconstructed") + concurrently
        age = ", one update old at every stage" if method.double_buffered else ", stashed"
        kept = f"those of the forward{age}" if method.stashes_weights else "current"
        assert weights == (kept if method.pipelined else "those of the forward")
        assert pipelined == ("yes" if method.pipelined else "no")
        assert staleness == ("at most *k*" if method.double_buffered else "any" if method.pipelined else "0")
    paragraph = TEXTS["README.md"].split("Published systems are")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", paragraph)) == {*methods.SYSTEMS, *(m.name for m in methods.SYSTEMS.values())}


def test_packages_are_listed_in_import_order() -> None:
    """docs/code.md lists all packages of reproduce, and none imports a package that is listed after it."""
    guide = TEXTS["docs/code.md"].split("**The paper**")[1].split("\n\n")[0]
    package = ROOT / "reproduce"
    rooms = [name for name in re.findall(r"`(\w+)/`", guide) if name != "reproduce"]
    assert sorted(rooms) == sorted(folder.name for folder in package.iterdir() if (folder / "__init__.py").exists())
    backward = [
        f"{file.relative_to(ROOT)} imports {other}"
        for number, room in enumerate(rooms)
        for file in (package / room).rglob("*.py")
        for other in re.findall(r"^\s*(?:from|import) reproduce\.(\w+)", file.read_text("utf-8"), re.M)
        if other in rooms[number + 1 :]
    ]
    assert not backward, "\n".join(backward)


def test_committed_schedule_is_up_to_date(tmp_path: Path) -> None:
    """docs/schedule.svg equals a new drawing and is smaller than 200 kB."""
    draw([str(tmp_path / "schedule.svg")])
    committed = (ROOT / "docs" / "schedule.svg").read_bytes()
    assert committed == (tmp_path / "schedule.svg").read_bytes(), "run `python -m reproduce.drawing docs/schedule.svg`"
    assert len(committed) < 200_000  # three timings of eight stages
