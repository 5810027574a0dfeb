"""Loading the native library: absent is fine, foreign or stale is refused."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from poot.devices.formats import Format
from poot.devices.kernels import native as native_module
from poot.devices.kernels.native import ABI_VERSION, NativeKernels, library_path, load_native
from poot.errors import DeviceError

SOURCES = Path(native_module.__file__).parent / "cpu"


@pytest.fixture
def uncached_load(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Lets a test point `library_path` elsewhere; load with `load_native.__wrapped__()`."""
    return monkeypatch


def test_no_library_is_a_normal_state(uncached_load: pytest.MonkeyPatch) -> None:
    uncached_load.setattr(native_module, "library_path", lambda: None)
    assert load_native.__wrapped__() is None


def test_a_file_that_is_no_library_is_refused(uncached_load: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "_native.so"
    broken.write_bytes(b"not a library")
    uncached_load.setattr(native_module, "library_path", lambda: broken)
    with pytest.raises(DeviceError, match="reinstall"):
        load_native.__wrapped__()


def test_another_version_is_refused() -> None:
    stale = cast("ctypes.CDLL", SimpleNamespace(poot_abi_version=lambda: ABI_VERSION + 1))
    with pytest.raises(DeviceError, match=r"version \d+, not \d+; reinstall"):
        NativeKernels(stale)


def test_a_missing_function_is_refused() -> None:
    stale = cast("ctypes.CDLL", SimpleNamespace(poot_abi_version=lambda: ABI_VERSION))
    with pytest.raises(DeviceError, match=r"poot_isa.*reinstall"):
        NativeKernels(stale)


def test_both_sides_name_the_same_version() -> None:
    assert f"#define POOT_ABI_VERSION {ABI_VERSION}\n" in (SOURCES / "poot_native.h").read_text()


def test_block_sizes_of_the_sources_are_those_of_the_formats() -> None:
    text = (SOURCES / "dispatch.c").read_text()
    for format in Format:
        assert f'{{"{format.label}", {format.block_weights}, {format.block_bytes}}}' in text


def test_the_library_shares_the_openmp_runtime_of_torch() -> None:
    if load_native() is None:
        pytest.skip("the native kernels were not built")
    if not Path("/proc/self/maps").is_file():
        pytest.skip("this system has no /proc")
    # In a process of its own: other packages that the tests import bring a renamed libgomp.
    script = """
from poot.devices.kernels.native import load_native
load_native()
print(len({line.split()[-1] for line in open("/proc/self/maps") if "/libgomp" in line}))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    # Two of them would be two pools of threads that fight for the same cores.
    assert int(result.stdout) <= 1


def test_an_unknown_instruction_set_changes_nothing() -> None:
    kernels = load_native()
    if kernels is None:
        pytest.skip("the native kernels were not built")
    before = kernels.isa
    assert not kernels.select_isa("sve9")
    assert kernels.isa == before


def test_shapes_that_do_not_fit_are_caught_before_memory_is_touched() -> None:
    kernels = load_native()
    if kernels is None:
        pytest.skip("the native kernels were not built")
    weight = torch.zeros((4, Format.Q4_1.row_bytes(64)), dtype=torch.uint8)
    out = torch.zeros((1, 4))
    for x, y in (
        (torch.zeros((1, 32)), out),
        (torch.zeros((1, 64)), torch.zeros((1, 5))),
        (torch.zeros((1, 64), dtype=torch.float64), out),
        (torch.zeros((64, 64)).T[:1], out),
    ):
        with pytest.raises(AssertionError):
            kernels.linear(Format.Q4_1, weight, x, y, None, 1)
    with pytest.raises(AssertionError):
        kernels.linear(Format.Q4_K, weight, torch.zeros((1, 64)), out, None, 1)


def test_the_built_library_lies_beside_the_module() -> None:
    path = library_path()
    if path is None:
        pytest.skip("the native kernels were not built")
    assert path.parent == Path(native_module.__file__).parent
