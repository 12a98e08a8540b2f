"""Test that texts use plain English: no phrase of `BANNED` and no function word as a name."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

#: Folders and files whose texts are checked: all but the records and what is generated from them.
CHECKED = (
    *("benchmarks", "docs", "examples", "petra_core", "reproduce", "tests"),
    *("noxfile.py", "README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "reproduce/exhibits/exhibits.toml"),
)

#: Pattern by the phrase to use instead.
BANNED = {
    r"\b(its|their|his|our) own\b": "separate, or a pronoun without 'own'",
    r"\bas of `": "as in",
    r"\blikewise\b": "also, or in the same way",
    r"\banew\b": "again",
    r"\bwhoever\b": "a noun",
    r"\bnobody\b": "a noun, or the passive voice",
    r"\bbesides\b": "in addition to",
    r"\bso (many|long)\b": "the number or the time itself",
    r"\bat once\b": "immediately, or at the same time",
    r"\bgo(es)? on\b": "continue, or resume",
    r"\balone\b": "only",
    r"\bbut for\b": "except for",
    r"\bfor ever\b": "without end",
    r"\b(is|are) told\b": "the name of the message or argument",
    r"\blet go\b": "release",
    r"\bunder way\b": "in flight, or running",
    r"\bworked off\b": "processed",
    r"\bto the bit\b": "bitwise",
    r"\bSee that\b": "Check that",
    r"\bContext in which\b": "an imperative sentence",
}
ANY = re.compile("|".join(BANNED), re.IGNORECASE)
#: The first word of a docstring that is a question instead of a sentence.
QUESTION = r"(What|Which|Whether|How|Who)\b"
#: An exception in the middle of a sentence instead of in a section `Raises:`.
INLINE_RAISES = r"\S +Raises:? +([A-Z]\w+Error|[\w.]*Error|[\w.]*Exit)\b *:"

#: Texts that stay, by file and phrase; an empty phrase stands for the whole file.
KEPT = {
    ("benchmarks/peers/__main__.py", "nobody"): "a finding of committed records",
    ("benchmarks/tick.py", "alone"): "a finding of committed records",
    ("tests/benchmarks/test_peers.py", "nobody"): "compares a finding of committed records",
    ("tests/reproduce/models/test_permutation.py", "alone"): "the name of a function",
    ("tests/test_wording.py", ""): "defines the phrases",
}

PYTHON = ("petra_core", "reproduce", "benchmarks", "examples", "docs", "tests")
#: Function words that say nothing as identifiers and cannot be searched for.
FUNCTION_WORDS = {"also", "every", "less", "of", "only", "said", "shown", "told"}
KEPT_NAMES = {("reproduce/grids/selection.py", "only"): "the option --only"}


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the docstrings of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            (statement, *_) = node.body
            assert isinstance(statement, ast.Expr)
            assert isinstance(statement.value, ast.Constant)
            yield statement.value


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every comment and string of a Python source."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        # Since Python 3.12 an f-string is not one token, but has its text in tokens of a separate type.
        if tokenize.tok_name[token.type] in ("COMMENT", "STRING", "FSTRING_MIDDLE"):
            yield token.start[0], token.string


def prose(page: str) -> str:
    """Return a Markdown page with blanks for fenced blocks and inline code, so that lines keep their numbers."""
    return re.sub(r"^```.*?^```|`[^`\n]+`", lambda code: re.sub(r"[^\n`]", " ", code[0]), page, flags=re.M | re.S)


def instead_of(phrase: str) -> str:
    """Return the advice for a banned phrase."""
    return next(advice for pattern, advice in BANNED.items() if re.fullmatch(pattern, phrase, re.IGNORECASE))


def found(name: str, source: str) -> list[str]:
    """Return a message for every banned phrase in a file."""
    python = name.endswith(".py")
    lines = [(1, prose(source))] if not python else texts(source) if ANY.search(source) else []
    messages = [
        f"{name}:{start + text[: match.start()].count(chr(10))}: {match[0]!r}: write {instead_of(match[0])}"
        for start, text in lines
        for match in ANY.finditer(text)
        if (name, match[0].lower()) not in KEPT
    ]
    for docstring in docstrings(ast.parse(source)) if python else ():
        if match := re.match(QUESTION, str(docstring.value)):
            messages.append(f"{name}:{docstring.lineno}: docstring begins with {match[0]!r}: write a sentence")
        if match := re.search(INLINE_RAISES, str(docstring.value)):
            messages.append(f"{name}:{docstring.lineno}: {match[0]!r}: write a section")
    return messages


def files() -> Iterator[Path]:
    """Yield the files of `CHECKED`."""
    for pattern in CHECKED:
        for path in ROOT.glob(pattern):
            yield from [path] if path.is_file() else sorted(path.rglob("*.py")) + sorted(path.rglob("*.md"))


def test_no_text_has_a_banned_phrase() -> None:
    paths = {str(path.relative_to(ROOT)): path for path in files()}
    assert len(paths) > 250
    messages = [
        message
        for name, path in paths.items()
        if (name, "") not in KEPT
        for message in found(name, path.read_text(encoding="utf-8"))
    ]
    assert not messages, "\n".join(messages)


def bound_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and name of every variable, parameter, attribute, function and class that a module binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def test_no_identifier_is_a_function_word() -> None:
    assert list(bound_names(ast.parse("def f(of):\n    self.said = told = 1\n"))) == [
        *((1, "f"), (1, "of"), (2, "said"), (2, "told"))
    ]
    paths = [path for folder in PYTHON for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(paths) > 400
    wrong = [
        f"{name}:{line}: {identifier}: name what it holds"
        for name, path in ((str(path.relative_to(ROOT)), path) for path in [*paths, ROOT / "noxfile.py"])
        for line, identifier in bound_names(ast.parse(path.read_text(encoding="utf-8")))
        if identifier.strip("_") in FUNCTION_WORDS and (name, identifier) not in KEPT_NAMES
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('"""Keep its own copy."""\n', "a.py:1: 'its own'"),
        ("x = 1  # of two, nobody reads it\n", "a.py:1: 'nobody'"),
        ('y = f"{1} at once"\n', "a.py:1: 'at once'"),
        ('"""Start.\n\nThis goes on.\n"""\n', "a.py:3: 'goes on'"),
        ('"""Which is it."""\n', "a.py:1: docstring begins with 'Which'"),
        ('"""Read it. Raises: ValueError: it is empty."""\n', "write a section"),
        ('def f():\n    """Read it. Raises ValueError: it is empty."""\n', "a.py:2: '. Raises ValueError:'"),
    ],
)
def test_found_reports_phrase_and_line(source: str, message: str) -> None:
    """`found` reports banned phrases, docstrings that are questions, and inline `Raises`."""
    assert any(message in line for line in found("a.py", source)), found("a.py", source)


def test_found_ignores_sections_identifiers_and_code() -> None:
    assert not found("a.py", '"""Read it.\n\nRaises:\n    ValueError: It is empty.\n\n"""\nalone = 1\n')
    assert not found("a.md", "Call `alone`.\n\n```python\nalone = 1\n```\n")
    assert found("a.md", "Call `it`\nalone.\n") == ["a.md:2: 'alone': write only"]
