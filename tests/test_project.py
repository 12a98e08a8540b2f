"""Test promises of the whole repository: commands, pinned versions, plain texts, and no files of one machine."""

import ast
import graphlib
import pkgutil
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import petra_core

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


# Written so that the patterns do not find themselves.
MACHINE_PATH = r"/(?:work|root|farm|tmp)/|/home/[a-z]"
REGISTRY = r"pypi[.]org|pythonhosted[.]org|deb[.]debian[.]org|registry[.]npmjs"
FOREIGN = re.compile(f"{MACHINE_PATH}|{REGISTRY}")


def listed(*options: str) -> list[Path]:
    """Return the existing files that `git ls-files` lists."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout, or no git to ask")
    command = ["git", "ls-files", "-z", *options]
    names = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [ROOT / name for name in names.split("\0") if (ROOT / name).is_file()]


def tracked() -> list[Path]:
    """Return the text files under version control."""
    return [file for file in listed() if b"\0" not in file.read_bytes()]


def pins() -> dict[str, str]:
    """Return the version of each package in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert not any("://" in line for line in lines)
    # a line that does not match raises an error, as it should
    pinned = dict(re.fullmatch(r"([a-z0-9-]+)==(\S+)(?: ; .+)?", line).groups() for line in lines if line[0] != "#")
    assert len(pinned) == sum(line[0] != "#" for line in lines), "a package is pinned twice"
    return pinned


def test_constraints_pin_all_declared_packages() -> None:
    """Every declared dependency is pinned to a version that its specifier allows."""
    declared = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    for group in (*PROJECT["dependency-groups"].values(), *PROJECT["project"]["optional-dependencies"].values()):
        declared += group
    for requirement in map(Requirement, declared):
        version = pins().get(requirement.name)
        assert version is not None, f"{requirement.name} is not pinned: run `nox -s lock`"
        assert requirement.specifier.contains(version), f"{requirement} is pinned to {version}: run `nox -s lock`"


def test_readme_lists_exactly_the_sessions() -> None:
    """The table of sessions in README.md matches noxfile.py."""
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    defined = re.findall(r'@nox\.session(?:\(name="(.+?)"\))?\ndef (\w+)', noxfile)
    table = README.split("| session |")[1].split("\n\n")[0]
    assert {name or function for name, function in defined} == set(re.findall(r"^\| `(.+?)` \|", table, re.M))


def test_citation_and_changelog_have_current_version() -> None:
    assert f"\nversion: {petra_core.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    (newest, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest == petra_core.__version__


def test_petra_script_prints_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The entry point `petra` runs the command line, which prints the version of petra_core."""
    monkeypatch.setattr("sys.argv", ["petra", "--version"])
    with pytest.raises(SystemExit, match="0"):
        pkgutil.resolve_name(PROJECT["project"]["scripts"]["petra"])()
    assert capsys.readouterr().out == f"petra, version {petra_core.__version__}\n"


@pytest.mark.parametrize(
    ("subject", "accepted"),
    [
        ("table3: accept records without memory growth", True),
        ("petra_core/models, docs: rename a block\n\nThe reason.", True),
        ("Merge branch 'docs'", True),
        ("records: " + "x" * 63, True),
        ("records: " + "x" * 64, False),
        ("Accept records without memory growth", False),
        ("table3:accept records", False),
    ],
)
def test_commit_hook_checks_area_and_length(subject: str, accepted: bool) -> None:
    """Search as pre-commit does: `--multiline` sets these flags."""
    (pattern,) = re.findall(r"entry: '(.+)'", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert bool(re.search(pattern, f"{subject}\n", re.MULTILINE | re.DOTALL)) is accepted


def test_no_source_file_is_ignored() -> None:
    """The pattern `data/`, meant for data sets, once hid the package reproduce.data: it ran, and was in no commit."""
    hidden = listed("--others", "--ignored", "--exclude-standard", "petra_core", "reproduce", "benchmarks", "tests")
    assert not [file for file in hidden if file.suffix != ".pyc"]


def test_no_machine_paths_or_registry_addresses() -> None:
    """No tracked text file contains a path of one machine or the address of a package registry."""
    foreign = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for file in tracked()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if FOREIGN.search(line)
    ]
    assert not foreign, "paths of one machine or addresses of package registries:\n" + "\n".join(foreign)


def test_devices_use_only_public_engine_names() -> None:
    """Recorded steps once used about 50 private members, so every change of the engine broke them."""
    modules = {file: ast.parse(file.read_text("utf-8")) for file in (ROOT / "petra_core").rglob("*.py")}
    private = {file: _private_names(tree) for file, tree in modules.items()}
    devices = [file for file in modules if file.parent.name == "devices"]
    assert len(devices) > 4
    assert [
        f"{file.relative_to(ROOT)}:{node.lineno}: {name}"
        for file in devices
        for node, name, is_own in _uses(modules[file])
        if not (is_own and name in private[file]) and any(name in names for names in private.values())
    ] == []


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _is_self(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id == "self"


def _private_names(tree: ast.Module) -> set[str]:
    """Return the private names that a module defines or assigns: functions, classes, variables and attributes."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            names.add(node.attr)
    return set(filter(_is_private, names))


def _uses(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str, bool]]:
    """Yield attributes and imported names that are private, and whether the object is the module's own `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            yield node, node.attr, _is_self(node.value)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node, alias.name, False) for alias in node.names if _is_private(alias.name))


def imports_of(file: Path, modules: dict[str, Path]) -> set[str]:
    """Return the modules of the project that a file imports, also within functions, but not only for type checkers."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = [(node.module or "", f"{node.module}.{alias.name}") for node in found for alias in node.names]
    return {submodule if submodule in modules else module for module, submodule in names} & modules.keys()


def test_no_module_imports_itself_through_others() -> None:
    """The imports of the packages form no cycle, those within functions included."""
    files = [file for package in ("petra_core", "reproduce") for file in (ROOT / package).rglob("*.py")]
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}
    graph = {module: imports_of(file, modules) - {module} for module, file in modules.items()}
    assert sum(map(len, graph.values())) > len(graph), "imports were not found"
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_no_test_module_imports_another() -> None:
    """Shared code is in modules without tests, so that a file of tests can be moved or deleted."""
    files = list((ROOT / "tests").rglob("*.py"))
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files}
    tests = {module: file for module, file in modules.items() if file.name.startswith("test_")}
    assert len(tests) > 100
    assert {module: found for module, file in modules.items() if (found := imports_of(file, tests))} == {}


def test_text_io_states_encoding() -> None:
    """The default is the encoding of the locale: a patch with an umlaut was once recorded under another file."""
    modules = [file for name in ("reproduce", "benchmarks") for file in (ROOT / name).rglob("*.py")]
    assert [
        f"{file.relative_to(ROOT)}:{call.lineno}"
        for file in modules
        for call in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(call, ast.Call) and _by_the_locale(call)
    ] == []


def _by_the_locale(call: ast.Call) -> bool:
    """Return whether a call reads or writes text without stating an encoding."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    keywords = {keyword.arg for keyword in call.keywords}
    if "encoding" in keywords:
        return False
    if name in ("run", "Popen", "check_output"):
        return bool({"text", "universal_newlines"} & keywords)
    if name == "open":
        module = getattr(getattr(call.func, "value", None), "id", "")
        modes = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        return module not in ("os", "Image", "tarfile") and not any("b" in mode for mode in modes)
    return (name == "read_text" and not call.args) or (name == "write_text" and len(call.args) < 2)
