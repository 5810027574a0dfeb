"""Device timing: what is retained, what is said about it, and that an unknown time is None and never 0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from poot.config import TimingConfig
from poot.devices.base import Ops
from poot.devices.timing import DispatchRecord, TimedOps, TimingLog
from poot.metrics import TimingDetail


def run_steps(log: TimingLog, num_steps: int, *, dispatches: int = 2, device: float | None = None) -> int:
    """Runs steps of so many dispatches, 1 s each on the host; how many of them were to be filled."""
    num_filled = 0
    for _ in range(num_steps):
        record = log.begin_step(7)
        if record is not None:
            num_filled += 1
            record.dispatches += [DispatchRecord("linear", 1.0, device)] * dispatches
            log.end_step(record)
    return num_filled


def timing_log(config: TimingConfig | None = None, *, measures_device: bool = False) -> TimingLog:
    return TimingLog(config or TimingConfig(enabled=True), measures_device=measures_device, perturbs=measures_device)


def test_detail_within_the_bounds_is_complete() -> None:
    log = timing_log()
    assert run_steps(log, 3) == 3
    timing = log.snapshot()
    assert timing.detail is TimingDetail.COMPLETE
    assert (timing.retained_steps, timing.retained_dispatch_records) == (3, 6)
    assert (timing.dispatches["linear"].count, timing.dispatches["linear"].host_seconds) == (6, 6.0)


def test_a_time_that_nothing_measured_is_none() -> None:
    log = timing_log()
    run_steps(log, 3)
    assert log.snapshot().device_seconds is None
    assert log.snapshot().dispatches["linear"].device_seconds is None
    assert log.detail()[0]["dispatches"][0] == {"name": "linear", "host_us": 1e6, "device_us": None}


def test_measured_device_times_add_up() -> None:
    log = timing_log(measures_device=True)
    run_steps(log, 3, device=0.25)
    timing = log.snapshot()
    assert timing.device_seconds == 1.5
    assert timing.dispatches["linear"].device_seconds == 1.5
    assert timing.perturbed


def test_one_of_every_n_steps_is_kept() -> None:
    log = timing_log(TimingConfig(sample_every=4))
    assert run_steps(log, 9) == 3
    assert log.snapshot().detail is TimingDetail.SAMPLED
    assert [step["step"] for step in log.detail()] == [0, 4, 8]


@pytest.mark.parametrize(
    ("bounds", "steps", "records"),
    [(TimingConfig(max_steps=2), 2, 4), (TimingConfig(max_dispatch_records=3), 2, 3)],
)
def test_a_bound_truncates_and_says_so(bounds: TimingConfig, steps: int, records: int) -> None:
    log = timing_log(bounds)
    run_steps(log, 5)
    timing = log.snapshot()
    assert timing.detail is TimingDetail.TRUNCATED
    assert (timing.retained_steps, timing.retained_dispatch_records) == (steps, records)


def test_a_bound_that_is_just_reached_has_cut_nothing() -> None:
    log = timing_log(TimingConfig(max_steps=2, max_dispatch_records=4))
    run_steps(log, 2)
    assert log.snapshot().detail is TimingDetail.COMPLETE


def test_timed_operations_give_what_the_operations_give() -> None:
    log = timing_log()
    record = log.begin_step(1)
    assert record is not None
    ops = cast("Any", TimedOps.around(cast("Ops", SimpleNamespace(add=lambda x, y, scale=1.0: x + scale * y)), record))
    assert ops.add(1.0, 2.0, scale=3.0) == 7.0
    log.end_step(record)
    (dispatch,) = record.dispatches
    assert dispatch.name == "add"
    assert dispatch.host_seconds > 0
    assert dispatch.device_seconds is None
