"""--device-timing: bounded detail of what each step's dispatches took, and what is honest to say about it.

Off, nothing here exists and no clock is read beyond the one of a step's host wall. On, one of every `sample_every`
steps is kept until a bound is reached; later steps then still run and are counted, but their detail is dropped and the
log says `truncated`. A device that cannot time its dispatches (the processor: there is no device clock beside the
host's) leaves their device time None, never 0; what it can mark is the host's clock between dispatches.

The device thread writes; any thread may read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, TypeVar, cast

from poot.config import TimingConfig
from poot.devices.base import Ops
from poot.metrics import DeviceTiming, DispatchTotals, TimingDetail

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DispatchRecord:
    """One dispatch: its operation's name, and the seconds it took on each clock; None where none measured it."""

    name: str
    host_seconds: float
    device_seconds: float | None


@dataclass(kw_only=True, slots=True)
class StepRecord:
    """The detail of one step.

    Attributes:
        index: number of the step since startup, from 0.
        num_tokens: tokens it computed.
        dispatches: in the order of their submission.
    """

    index: int
    num_tokens: int
    dispatches: list[DispatchRecord] = field(default_factory=list)

    def run(self, name: str, operation: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """What `operation` returns, with the host's seconds it took kept under `name`."""
        started = time.perf_counter()
        result = operation(*args, **kwargs)
        self.dispatches.append(DispatchRecord(name, time.perf_counter() - started, None))
        return result


class TimingLog:
    """The retained detail of one device.

    Args:
        measures_device: whether the device has a clock of its own that `DispatchRecord.device_seconds` come from.
        perturbs: whether taking timestamps changes how work is submitted.
    """

    def __init__(self, config: TimingConfig, *, measures_device: bool, perturbs: bool) -> None:
        self._config = config
        self._measures_device = measures_device
        self._perturbs = perturbs
        self._lock = Lock()
        self._steps: list[StepRecord] = []
        self._num_seen = 0
        self._num_records = 0
        self._is_truncated = False
        self._totals: dict[str, DispatchTotals] = {}

    def begin_step(self, num_tokens: int) -> StepRecord | None:
        """A record to fill for the step that is about to run; None where its detail is not kept."""
        index = self._num_seen
        self._num_seen += 1
        if index % self._config.sample_every:
            return None
        if len(self._steps) >= self._config.max_steps or self._num_records >= self._config.max_dispatch_records:
            self._is_truncated = True
            return None
        return StepRecord(index=index, num_tokens=num_tokens)

    def end_step(self, record: StepRecord) -> None:
        """Keeps a filled record, as many of its dispatches as the bound leaves room for."""
        room = self._config.max_dispatch_records - self._num_records
        with self._lock:
            if len(record.dispatches) > room:
                self._is_truncated = True
                del record.dispatches[room:]
            self._num_records += len(record.dispatches)
            self._steps.append(record)
            for dispatch in record.dispatches:
                totals = self._totals.get(dispatch.name, DispatchTotals())
                self._totals[dispatch.name] = totals.plus(dispatch.host_seconds, dispatch.device_seconds)

    def detail(self) -> list[dict[str, Any]]:
        """Every retained step as plain data, times in microseconds; device times None where nothing measured them."""
        with self._lock:
            steps = list(self._steps)
        return [
            {
                "step": step.index,
                "tokens": step.num_tokens,
                "dispatches": [
                    {
                        "name": dispatch.name,
                        "host_us": round(1e6 * dispatch.host_seconds, 1),
                        "device_us": None if (device := dispatch.device_seconds) is None else round(1e6 * device, 1),
                    }
                    for dispatch in step.dispatches
                ],
            }
            for step in steps
        ]

    def snapshot(self) -> DeviceTiming:
        """The figures /metrics shows."""
        with self._lock:
            totals = dict(self._totals)
            num_steps, num_records = len(self._steps), self._num_records
        device_seconds = None
        if self._measures_device:
            device_seconds = sum(total.device_seconds or 0.0 for total in totals.values())
        if self._is_truncated:
            detail = TimingDetail.TRUNCATED
        elif self._config.sample_every > 1:
            detail = TimingDetail.SAMPLED
        else:
            detail = TimingDetail.COMPLETE
        return DeviceTiming(
            device_seconds=device_seconds,
            detail=detail,
            perturbed=self._perturbs,
            retained_steps=num_steps,
            retained_dispatch_records=num_records,
            dispatches=totals,
        )


class StepTimer:
    """Where the programs of a device find the log of their steps.

    Attributes:
        log: None until timing is asked for.
    """

    def __init__(self) -> None:
        self.log: TimingLog | None = None


class TimedOps:
    """`Ops` that marks the host's clock around every operation of one step, for devices that finish each in turn."""

    def __init__(self, ops: Ops, record: StepRecord) -> None:
        self._ops = ops
        self._record = record

    @classmethod
    def around(cls, ops: Ops, record: StepRecord) -> Ops:
        """`ops`, timed into `record`."""
        return cast("Ops", cls(ops, record))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._record.run, name, getattr(self._ops, name))
