"""Memory budgets from /proc and /sys as the kernel lays them out (proc_meminfo(5), cgroups(7))."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from poot.devices.base import MemoryBudget
from poot.devices.memory import cpu_memory
from poot.errors import DeviceError

MIB = 1024 * 1024


def write(root: Path, files: dict[str, str]) -> Path:
    meminfo = {"proc/meminfo": "MemTotal:       16384000 kB\nMemFree:  100 kB\nMemAvailable:    8192000 kB\n"}
    for name, text in {**meminfo, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    root = write(tmp_path, {})
    assert cpu_memory(root) == MemoryBudget(total_bytes=16384000 * 1024, available_bytes=8192000 * 1024)


def test_version_2_limit_counts_page_cache_as_available(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/serving/poot/"
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/serving/poot\n",
            group + "memory.max": f"{1000 * MIB}\n",
            group + "memory.current": f"{600 * MIB}\n",
            group + "memory.stat": f"anon {300 * MIB}\ninactive_file {200 * MIB}\nactive_file {50 * MIB}\n",
        },
    )
    assert cpu_memory(root) == MemoryBudget(total_bytes=1000 * MIB, available_bytes=650 * MIB)


def test_the_tightest_ancestor_limits(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/serving/poot\n",
            "sys/fs/cgroup/serving/poot/memory.max": "max\n",
            "sys/fs/cgroup/serving/poot/memory.current": f"{100 * MIB}\n",
            "sys/fs/cgroup/serving/memory.max": f"{500 * MIB}\n",
            "sys/fs/cgroup/serving/memory.current": f"{450 * MIB}\n",
        },
    )
    assert cpu_memory(root) == MemoryBudget(total_bytes=500 * MIB, available_bytes=50 * MIB)


def test_a_container_sees_its_group_at_the_mount(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../docker/abc\n",
            "sys/fs/cgroup/memory.max": f"{256 * MIB}\n",
            "sys/fs/cgroup/memory.current": f"{56 * MIB}\n",
        },
    )
    assert cpu_memory(root) == MemoryBudget(total_bytes=256 * MIB, available_bytes=200 * MIB)


def test_version_1_limit(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "11:cpu,cpuacct:/a\n4:memory:/a\n0::/a\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{400 * MIB}\n",
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{300 * MIB}\n",
            "sys/fs/cgroup/memory/a/memory.stat": f"total_inactive_file {100 * MIB}\ninactive_file 5\n",
        },
    )
    assert cpu_memory(root) == MemoryBudget(total_bytes=400 * MIB, available_bytes=200 * MIB)


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "300\n",
        },
    )
    assert cpu_memory(root).total_bytes == 16384000 * 1024


def test_use_above_a_lowered_limit_leaves_nothing(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "1000\n",
            "sys/fs/cgroup/memory.current": "2000\n",
        },
    )
    assert cpu_memory(root).available_bytes == 0


@pytest.mark.parametrize("text", ["", "nonsense", "0:/", "MemTotal: many kB", "\x00"])
def test_odd_files_are_passed_over(tmp_path: Path, text: str) -> None:
    root = write(tmp_path, {"proc/self/cgroup": text, "sys/fs/cgroup/memory.max": text})
    assert cpu_memory(root).total_bytes == 16384000 * 1024


def test_without_proc_sysconf_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000, "SC_AVPHYS_PAGES": 600}
    monkeypatch.setattr(os, "sysconf", answers.__getitem__)
    assert cpu_memory(tmp_path) == MemoryBudget(total_bytes=4096000, available_bytes=4096 * 600)


def test_where_free_pages_are_not_told_half_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sysconf(name: str) -> int:
        if name == "SC_AVPHYS_PAGES":
            raise ValueError("unrecognized configuration name")  # as on macOS
        return {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}[name]

    monkeypatch.setattr(os, "sysconf", sysconf)
    assert cpu_memory(tmp_path) == MemoryBudget(total_bytes=4096000, available_bytes=2048000)


def test_a_system_that_does_not_tell_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sysconf")
    with pytest.raises(DeviceError, match="how much memory"):
        cpu_memory(tmp_path)
