"""How much memory the cpu device may plan with: what the machine has, cut by the control group it runs in.

Page cache counts as available, here as in the kernel's own MemAvailable: the weights of a mapped file are page cache,
and the plan counts them itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from poot.devices.base import MemoryBudget
from poot.errors import DeviceError

# cgroup v1 writes "no limit" as the largest page-aligned signed 64-bit number; anything near it means the same.
_V1_UNLIMITED = 1 << 62


def cpu_memory(root: Path = Path("/")) -> MemoryBudget:
    """The machine's memory in bytes, limited by this process's control groups.

    Args:
        root: where /proc and /sys are found; another directory in tests.

    Raises:
        DeviceError: the system does not say how much memory it has.
    """
    budget = _meminfo(root) or _sysconf()
    if budget is None:
        raise DeviceError("--backend cpu: the system does not say how much memory it has (/proc/meminfo, sysconf)")
    total, available = budget.total_bytes, budget.available_bytes
    for limit, used in _cgroup_limits(root):
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return MemoryBudget(total_bytes=total, available_bytes=available)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _number(text: str | None) -> int | None:
    text = "" if text is None else text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _fields(text: str | None) -> dict[str, int]:
    """Lines of `name value [unit]`, the colon after a name dropped."""
    fields = {}
    for line in (text or "").splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdigit():
            fields[words[0].rstrip(":")] = int(words[1])
    return fields


def _meminfo(root: Path) -> MemoryBudget | None:
    """MemTotal and MemAvailable of proc_meminfo(5), which are in KiB."""
    fields = _fields(_read(root / "proc/meminfo"))
    if "MemTotal" not in fields or "MemAvailable" not in fields:
        return None
    return MemoryBudget(total_bytes=fields["MemTotal"] * 1024, available_bytes=fields["MemAvailable"] * 1024)


def _sysconf() -> MemoryBudget | None:
    """Physical pages by sysconf(3). macOS does not tell how many are free: half of them then counts as available."""
    if not hasattr(os, "sysconf"):
        return None
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total = os.sysconf("SC_PHYS_PAGES") * page
    except (ValueError, OSError):
        return None
    try:
        available = os.sysconf("SC_AVPHYS_PAGES") * page
    except (ValueError, OSError):
        available = total // 2
    return MemoryBudget(total_bytes=total, available_bytes=available)


def _cgroup_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that cannot be reclaimed) of every control group of this process that has a limit.

    A group is limited by its ancestors too, so all of them count. In a container the group's own path may not be
    visible; then the mounted root is the group.
    """
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "?", "")
        if controllers == "":
            mount, limit_name, used_name = root / "sys/fs/cgroup", "memory.max", "memory.current"
            prefix = ""
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            limit_name, used_name, prefix = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
        else:
            continue
        names = [name for name in path.split("/") if name not in ("", "..")]
        for depth in range(len(names), -1, -1):
            group = mount.joinpath(*names[:depth])
            limit, used = _number(_read(group / limit_name)), _number(_read(group / used_name))
            if limit is None or used is None or limit >= _V1_UNLIMITED:
                continue  # "max", no such file, or no limit
            stat = _fields(_read(group / "memory.stat"))
            cache = stat.get(prefix + "inactive_file", 0) + stat.get(prefix + "active_file", 0)
            yield limit, max(0, used - cache)
