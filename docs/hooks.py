"""Hooks of MkDocs: add the pages of the site that are not files of docs/, and correct the links between folders."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("petra_core", "reproduce")
#: Files at the top of the repository, by their names in the site.
TOP = {
    "index.md": "README.md",
    **{name: name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")},
    **{name: name for name in ("CITATION.cff", "LICENSE")},
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Append the API reference to the navigation, with the tree of packages and modules."""
    assert config.nav is not None
    config.nav.append({"API": [{name: _navigation(ROOT / name)} for name in PACKAGES]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files at the top of the repository, and a page for every module."""
    for name, source in TOP.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    for module in _modules():
        files.append(File.generated(config, _page(module), content=f"::: {_dotted(module)}\n"))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Adapt links to the site: the top of the repository and docs/ are one folder, and modules have reference pages."""
    markdown = re.sub(rf"\]\((?:\.\./)?((?:{'|'.join(PACKAGES)})/[\w/]+)\.py\)", r"](api/\1.md)", markdown)
    return re.sub(r"\]\((?:docs/|\.\./)", "](", markdown).replace("](README.md", "](index.md")


def _modules() -> list[Path]:
    return [file for name in PACKAGES for file in sorted((ROOT / name).rglob("*.py")) if _is_documented(file)]


def _is_documented(file: Path) -> bool:
    """Return whether a module has a page: packages and modules without a leading underscore."""
    return file.stem == "__init__" or not file.stem.startswith("_")


def _dotted(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def _page(file: Path) -> str:
    path = file.relative_to(ROOT).with_suffix(".md")
    return f"api/{path.with_name('index.md') if file.stem == '__init__' else path}"


def _navigation(package: Path) -> list[Any]:
    """Return MkDocs' navigation of a package: its page, its modules and its packages."""
    modules = [{file.stem: _page(file)} for file in sorted(package.glob("*.py")) if file.stem[0] != "_"]
    packages = [{folder.name: _navigation(folder)} for folder in sorted(package.iterdir()) if _is_package(folder)]
    return [_page(package / "__init__.py"), *modules, *packages]


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()
