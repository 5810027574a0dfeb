"""The documentation names things that exist: functions, files, links."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")])


def defined_names(source: Path) -> set[str]:
    """Functions, classes and methods of a module, methods as `Class.method`."""
    names = set()
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


def test_every_function_of_the_life_of_a_request_exists() -> None:
    text = (ROOT / "docs" / "life_of_a_request.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z0-9_/]+\.py): ([\w.]+)`", text)
    assert len(named) > 20
    known: set[str] = set()
    for path, name in named:
        names = defined_names(ROOT / "poot" / path)
        # A package's face re-exports what a module beside it defines.
        is_exported = path.endswith("__init__.py") and re.search(
            rf"\b{name}\b", (ROOT / "poot" / path).read_text(encoding="utf-8")
        )
        assert name in names or is_exported, f"{path}: {name}"
        known |= names
    for name in re.findall(r"`([A-Z]\w+\.\w+)`", text):  # a method whose file an earlier step named
        assert name in known, name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_flags_named_in_the_documentation_exist(document: Path) -> None:
    from poot.cli import flags

    known = {option.name for option in flags.OPTIONS}
    others = {"--strict", "--name", "--peer-python"}  # mypy's, a placeholder, the benchmarks' own
    for name in set(re.findall(r"`(--[a-z][a-z-]*)", document.read_text(encoding="utf-8"))) - others:
        # `--draft-*` stands for the three of them.
        assert name in known or any(each.startswith(name) for each in known if name.endswith("-")), name
