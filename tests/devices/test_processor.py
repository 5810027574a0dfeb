from __future__ import annotations

import os
from pathlib import Path

import pytest

from poot.devices.processor import num_threads, processor_name


@pytest.fixture
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return root


@pytest.mark.usefixtures("eight_cpus")
@pytest.mark.parametrize(
    ("quota", "threads"),
    [("max 100000", 8), ("200000 100000", 2), ("250000 100000", 3), ("50000 100000", 1), ("9900000 100000", 8)],
)
def test_a_quota_limits_the_threads(tmp_path: Path, quota: str, threads: int) -> None:
    assert num_threads(write(tmp_path, "sys/fs/cgroup/cpu.max", quota + "\n")) == threads


@pytest.mark.usefixtures("eight_cpus")
@pytest.mark.parametrize("text", ["", "many", "1 0", "a b"])
def test_an_odd_quota_does_not(tmp_path: Path, text: str) -> None:
    assert num_threads(write(tmp_path, "sys/fs/cgroup/cpu.max", text)) == 8


@pytest.mark.usefixtures("eight_cpus")
def test_the_affinity_counts_without_a_quota(tmp_path: Path) -> None:
    assert num_threads(tmp_path) == 8


def test_without_affinity_every_cpu_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert num_threads(tmp_path) == 6


def test_the_processor_is_named_as_the_kernel_names_it(tmp_path: Path) -> None:
    text = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Some: Processor 9000 @ 2 GHz\n"
    assert processor_name(write(tmp_path, "proc/cpuinfo", text)) == "Some: Processor 9000 @ 2 GHz"


def test_a_processor_without_a_name_still_has_one(tmp_path: Path) -> None:
    assert processor_name(tmp_path)
