"""The processor as the cpu device sees it: its name, and how many threads may run at once."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def num_threads(root: Path = Path("/")) -> int:
    """Threads the device computes with: the CPUs this process may run on, cut by its control group's quota.

    More threads than that would wait for each other at every operation's end. cgroup v2 writes the quota as
    "microseconds period" or "max period" in cpu.max; of a fraction of a CPU the ceiling counts.

    Args:
        root: where /sys is found; another directory in tests.
    """
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no affinity to ask for
        count = os.cpu_count() or 1
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            count = min(count, -(-int(quota) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        pass  # no control group of version 2, or not one that limits this process
    return max(1, count)


def processor_name(root: Path = Path("/")) -> str:
    """The processor's model name in words, such as the kernel reports it."""
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown processor"
