"""--backend and --placement to one opened device, or a refusal that says what was looked for.

`auto` takes the first backend whose device is present, in the order ptx, rocm, cpu, and never falls back after a
refusal: with a GPU present that this build cannot serve, it refuses. (wgpu joins the order with its backend.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from ctypes.util import find_library
from pathlib import Path

import torch

from poot.config import Backend, DeviceConfig, Placement, PlacementKind
from poot.devices.base import Device
from poot.devices.torch_device import CpuDevice
from poot.errors import DeviceError, NotAvailableError


def _has_cuda() -> bool:
    return torch.version.cuda is not None and torch.cuda.is_available()


def _has_hip() -> bool:
    return torch.version.hip is not None and torch.cuda.is_available()  # torch calls a HIP device cuda, too


def _has_graphics_adapter() -> bool:
    """Whether the system may have a device for WebGPU. Other systems than Linux always have one."""
    return sys.platform != "linux" or any(Path("/dev/dri").glob("renderD*"))


def _has_vulkan() -> bool:
    return find_library("vulkan") is not None or find_library("vulkan-1") is not None


_PRESENT: Mapping[Backend, Callable[[], bool]] = {
    Backend.PTX: _has_cuda,
    Backend.ROCM: _has_hip,
    Backend.WGPU: _has_graphics_adapter,
    Backend.VULKAN: _has_vulkan,
}

_LOOKED_FOR = {
    Backend.PTX: "a CUDA device that torch {version} opens",
    Backend.ROCM: "a HIP device that torch {version} opens",
    Backend.WGPU: "a graphics adapter (/dev/dri/renderD*)",
    Backend.VULKAN: "the Vulkan loader library",
}


def select_device(config: DeviceConfig, *, present: Mapping[Backend, Callable[[], bool]] = _PRESENT) -> Device:
    """Opens the device that `config` asks for.

    Args:
        present: for each backend but cpu, whether its device is there; replaced in tests.

    Raises:
        DeviceError: the named backend's device is absent, or the placement needs another backend.
        NotAvailableError: the device is there, but this build has no such backend, or not that placement.
    """
    backend = config.backend
    if backend is Backend.AUTO:
        backend = next((b for b in (Backend.PTX, Backend.ROCM) if present[b]()), Backend.CPU)
    is_group = config.placement.kind is not PlacementKind.SINGLE
    if is_group and backend is not Backend.PTX:
        raise DeviceError(
            f"--placement {_spell(config.placement)} needs the ptx backend, not {backend.value}: the other backends "
            "cannot copy between their devices"
        )
    if backend is Backend.CPU:
        return CpuDevice()
    if not present[backend]():
        looked_for = _LOOKED_FOR[backend].format(version=torch.__version__)
        raise DeviceError(f"--backend {backend.value}: no device; looked for {looked_for}")
    if is_group:
        raise NotAvailableError(f"--placement {_spell(config.placement)}")
    if config.backend is Backend.AUTO:
        raise NotAvailableError(f"--backend {backend.value} (which auto picked; --backend cpu runs on the processor)")
    raise NotAvailableError(f"--backend {backend.value}")


def _spell(placement: Placement) -> str:
    return f"{placement.kind.value}:{','.join(map(str, placement.ordinals))}"
