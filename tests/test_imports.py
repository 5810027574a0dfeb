"""The import table of the design, read from the sources.

    errors <- config <- devices <- engine <- api <- server <- cli
    errors <- config <- net     <----------  api

`log`, `metrics` and `progress` are base modules that every part may use. `net` and `engine` never import each other.
torch stays in `devices` and the tensor half of `engine`; h2 in `net/http`; the event loops behind AnyIO.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import poot

ROOT = Path(poot.__file__).parent
SOURCES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))

BASE = {"errors", "log", "metrics", "progress"}
MAY_IMPORT = {
    "errors": set(),
    "log": {"errors"},
    "metrics": set(),
    "progress": set(),
    "config": BASE,
    "devices": BASE | {"config"},
    "engine": BASE | {"config", "devices"},
    "net": BASE | {"config"},
    "api": BASE | {"config", "net", "engine"},
    "server": BASE | {"config", "devices", "engine", "net", "api"},
    "hosted": BASE | {"config", "devices", "engine", "net", "api", "server", "cli"},
    "cli": BASE | {"config", "devices", "engine", "net", "api", "server"},
    "__main__": BASE | {"config", "server", "cli"},
    "__init__": set(),
}

TORCH = ("devices/", "engine/checkpoint/", "engine/models/", "engine/runner.py")
ONLY_IN = {
    "torch": TORCH,
    "triton": ("devices/",),
    "safetensors": ("engine/checkpoint/",),
    "h11": (),
    "h2": (),
    "hpack": ("net/http/",),
    "asyncio": ("server.py",),
    "trio": ("server.py",),
    "uvloop": ("server.py",),
    "transformers": (),
    "pytest": (),
    "httpx": (),
}


def part_of(source: str) -> str:
    """The row of the table a file belongs to."""
    first, _, rest = source.partition("/")
    return first if rest else first.removesuffix(".py")


def imported_modules(source: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every module a file imports, wherever in the file, for annotations or not."""
    package = ["poot", *source.split("/")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                module = node.module or ""
            else:
                parts = package[: len(package) - node.level + 1]
                module = ".".join([*parts, *([node.module] if node.module else [])])
            if module == "poot":
                for alias in node.names:
                    yield node.lineno, f"poot.{alias.name}"
            else:
                yield node.lineno, module


def violations(source: str, text: str) -> list[str]:
    """What a file imports that its place in the tree forbids, one line each."""
    part = part_of(source)
    found = []
    for line, module in imported_modules(source, ast.parse(text)):
        top, _, rest = module.partition(".")
        if top == "poot":
            target = rest.partition(".")[0]
            is_allowed = target == part or target in MAY_IMPORT[part] or module in ("poot", "poot.__version__")
        else:
            is_allowed = top not in ONLY_IN or source.startswith(ONLY_IN[top])
        if not is_allowed:
            found.append(f"poot/{source}:{line} imports {module}")
    return found


@pytest.mark.parametrize("source", SOURCES)
def test_imports_follow_the_table(source: str) -> None:
    assert violations(source, (ROOT / source).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("net/connection.py", "from poot.engine.engine import Engine"),
        ("net/connection.py", "from poot import api"),
        ("net/http/head.py", "from ...engine import engine"),
        ("engine/engine.py", "from poot.net.exchange import Head"),
        ("engine/scheduler.py", "import torch"),
        ("engine/scheduler.py", "def late():\n    from torch import nn"),
        ("net/connection.py", "import h11"),
        ("net/listener.py", "import asyncio.events"),
        ("devices/base.py", "from poot.engine.sequence import Sequence"),
        ("config.py", "from poot.devices.base import Device"),
    ],
)
def test_a_forbidden_import_is_found(source: str, text: str) -> None:
    assert len(violations(source, text)) == 1


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("net/http/header_block.py", "import hpack"),
        ("engine/models/decoder.py", "import torch"),
        ("api/gate.py", "from poot.net.exchange import Head\nfrom poot.engine.sequence import Sequence"),
        ("net/connection.py", "from .http import http1\nimport anyio"),
    ],
)
def test_an_allowed_import_passes(source: str, text: str) -> None:
    assert violations(source, text) == []
