"""What importing the package settles before torch is loaded, seen from fresh processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def python(code: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    inherited = {name: value for name, value in os.environ.items() if name not in settings}
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**inherited, **environment},
        check=True,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("environment", "spins"),
    [({}, "5000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "None")],
    ids=str,
)
def test_idle_threads_spin_briefly_unless_told_otherwise(environment: dict[str, str], spins: str) -> None:
    code = "import os, sys, poot.devices; assert 'torch' not in sys.modules; print(os.environ.get('GOMP_SPINCOUNT'))"
    assert python(code, **environment).stdout.strip() == spins


def test_the_server_imports_it_before_torch() -> None:
    lines = python("import poot.server", "-X", "importtime").stderr.splitlines()
    modules = [line.rpartition("|")[2].strip() for line in lines]
    assert modules.index("poot.devices") < modules.index("torch._C")
