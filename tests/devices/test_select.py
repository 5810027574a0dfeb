"""--backend and --placement against every combination of devices that may be present."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from poot.config import Backend, DeviceConfig, Placement, PlacementKind
from poot.devices.select import select_device
from poot.errors import DeviceError, NotAvailableError

GPU_BACKENDS = (Backend.PTX, Backend.ROCM, Backend.WGPU, Backend.VULKAN)


def machine(*present: Backend) -> dict[Backend, Callable[[], bool]]:
    return {backend: (lambda: True) if backend in present else (lambda: False) for backend in GPU_BACKENDS}


@pytest.mark.parametrize("backend", [Backend.AUTO, Backend.CPU])
def test_without_a_gpu_the_processor_opens(backend: Backend) -> None:
    assert select_device(DeviceConfig(backend=backend), present=machine()).name == "cpu"


def test_cpu_opens_beside_a_gpu_when_it_is_named() -> None:
    assert select_device(DeviceConfig(backend=Backend.CPU), present=machine(*GPU_BACKENDS)).name == "cpu"


def test_auto_does_not_open_a_graphics_adapter_yet() -> None:
    assert select_device(DeviceConfig(), present=machine(Backend.WGPU, Backend.VULKAN)).name == "cpu"


@pytest.mark.parametrize(
    ("present", "picked"),
    [((Backend.PTX,), "ptx"), ((Backend.ROCM,), "rocm"), ((Backend.ROCM, Backend.PTX), "ptx")],
)
def test_auto_never_falls_back_from_a_gpu_to_the_processor(present: tuple[Backend, ...], picked: str) -> None:
    with pytest.raises(NotAvailableError, match=f"--backend {picked} .*--backend cpu.* not available yet"):
        select_device(DeviceConfig(), present=machine(*present))


@pytest.mark.parametrize("backend", GPU_BACKENDS)
def test_a_named_backend_without_its_device_is_refused_by_name(backend: Backend) -> None:
    others = [other for other in GPU_BACKENDS if other is not backend]
    with pytest.raises(DeviceError, match=f"--backend {backend.value}: .*looked for"):
        select_device(DeviceConfig(backend=backend), present=machine(*others))


@pytest.mark.parametrize("backend", GPU_BACKENDS)
def test_a_named_backend_with_its_device_is_not_built_yet(backend: Backend) -> None:
    with pytest.raises(NotAvailableError, match=f"^--backend {backend.value} is not available yet$"):
        select_device(DeviceConfig(backend=backend), present=machine(backend))


GROUP = Placement(kind=PlacementKind.TENSOR, ordinals=(1, 0))


@pytest.mark.parametrize("backend", [Backend.CPU, Backend.ROCM, Backend.WGPU, Backend.VULKAN, Backend.AUTO])
def test_a_group_needs_ptx(backend: Backend) -> None:
    with pytest.raises(DeviceError, match=r"--placement tensor:1,0 .*ptx.*cannot copy between their devices"):
        select_device(DeviceConfig(backend=backend, placement=GROUP), present=machine())


@pytest.mark.parametrize("backend", [Backend.PTX, Backend.AUTO])
def test_a_group_over_ptx_is_not_built_yet(backend: Backend) -> None:
    pipeline = Placement(kind=PlacementKind.PIPELINE, ordinals=(0, 1, 2))
    with pytest.raises(NotAvailableError, match=r"--placement pipeline:0,1,2 is not available yet"):
        select_device(DeviceConfig(backend=backend, placement=pipeline), present=machine(Backend.PTX))


def test_a_group_over_ptx_needs_a_device_first() -> None:
    with pytest.raises(DeviceError, match="--backend ptx: no device"):
        select_device(DeviceConfig(backend=Backend.PTX, placement=GROUP), present=machine())


def test_the_probes_of_this_machine_run() -> None:
    assert select_device(DeviceConfig(backend=Backend.CPU)).name == "cpu"
