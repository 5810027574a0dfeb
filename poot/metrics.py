"""What the process counts: one registry, read as JSON by /metrics and as Prometheus text by /metrics/prometheus.

A `Metrics` is made once by the composition root and handed to the parts that count; there is no global registry, so
two servers in one test do not share a number. Every family is there with HELP and TYPE from the first scrape, and so
is every label value that can be known before the first request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

PREFIX = "poot"

PROMETHEUS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

PROTOCOLS = ("http/1.1", "h2")
"""Values of the `protocol` label: the ALPN names. A connection counts as http/1.1 until it sent the HTTP/2 preface."""

REFUSAL_REASONS = ("connections", "rate_limit", "pending", "receiving", "queue_wait", "draining")
"""Values of the `reason` label of `refused`: the limit that was spent."""

# From one scheduler step to the default queue wait (60 s); waits are spread over orders of magnitude.
_WAIT_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# A token takes about a millisecond on a GPU and up to a second on a CPU with full rows.
_TOKEN_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class TimingDetail(Enum):
    """How much of the per-dispatch detail was kept."""

    COMPLETE = "complete"
    SAMPLED = "sampled"
    TRUNCATED = "truncated"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class DispatchTotals:
    """All retained dispatches of one name: how many, and their seconds on each clock.

    `device_seconds` is None when no device measured them (never 0 for that).
    """

    count: int = 0
    host_seconds: float = 0.0
    device_seconds: float | None = None

    def plus(self, host_seconds: float, device_seconds: float | None) -> DispatchTotals:
        """These and one more."""
        device = self.device_seconds
        if device_seconds is not None:
            device = (device or 0.0) + device_seconds
        return DispatchTotals(self.count + 1, self.host_seconds + host_seconds, device)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceTiming:
    """What a device reported about its own time.

    Attributes:
        device_seconds: device time of all measured steps, None when no device measured it (never 0 for that).
        detail: whether the retained per-dispatch detail is whole.
        perturbed: whether collecting it changed how work was submitted.
        retained_steps, retained_dispatch_records: how much of it there is.
        dispatches: its totals by the dispatch's name.
    """

    device_seconds: float | None = None
    detail: TimingDetail = TimingDetail.UNAVAILABLE
    perturbed: bool = False
    retained_steps: int = 0
    retained_dispatch_records: int = 0
    dispatches: Mapping[str, DispatchTotals] = field(default_factory=dict)


class Metrics:
    """The counters of one process. Attributes are prometheus_client metrics, but for one.

    Counting is thread-safe (prometheus_client locks each value).

    Attributes:
        device_timing: called for what the device says about its own time whenever somebody looks; any thread.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=True)
        self.device_timing: Callable[[], DeviceTiming] = DeviceTiming

        def counter(name: str, documentation: str, *labels: str) -> Counter:
            return Counter(name, documentation, labels, namespace=PREFIX, registry=registry)

        def gauge(name: str, documentation: str, *labels: str) -> Gauge:
            return Gauge(name, documentation, labels, namespace=PREFIX, registry=registry)

        def histogram(name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, documentation, (), namespace=PREFIX, registry=registry, buckets=buckets)

        self.requests = counter("requests", "Requests answered, by route and status.", "route", "status")
        self._request_series: dict[tuple[str, str], Counter] = {}
        self.connections_open = gauge("connections_open", "Connections open now, by protocol.", "protocol")
        self.connections = counter("connections", "Connections accepted, by protocol.", "protocol")
        self.admission_pending = gauge("admission_pending", "Model requests admitted: running or waiting.")
        self.admission_receiving = gauge("admission_receiving", "Admitted requests that are reading their body.")
        self.refused = counter("refused", "Requests and connections refused for a spent limit, by reason.", "reason")
        self.queue_wait_seconds = histogram(
            "queue_wait_seconds", "Seconds a sequence waited for a row.", _WAIT_BUCKETS_SECONDS
        )
        self.rows_held = gauge("rows_held", "Rows held by running sequences.")
        self.kv_blocks_held = gauge("kv_blocks_held", "KV blocks held by running sequences.")
        self.kv_blocks_cached = gauge("kv_blocks_cached", "KV blocks that no sequence holds, kept for their content.")
        self.prefix_cache_hit_tokens = counter("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache.")
        self.time_to_first_token_seconds = histogram(
            "time_to_first_token_seconds", "Seconds from open to the first generated token.", _WAIT_BUCKETS_SECONDS
        )
        self.inter_token_seconds = histogram(
            "inter_token_seconds", "Seconds between generated tokens of one sequence.", _TOKEN_BUCKETS_SECONDS
        )
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of opened sequences.")
        self.generated_tokens = counter("generated_tokens", "Tokens generated.")
        self.steps = counter("steps", "Forward passes run.")
        self.step_wall_seconds = counter("step_wall_seconds", "Host wall seconds of all forward passes.")
        self.cancelled = counter("cancelled", "Sequences released before they finished.")
        self.draft_proposed_tokens = counter("draft_proposed_tokens", "Tokens proposed by speculation.")
        self.draft_accepted_tokens = counter("draft_accepted_tokens", "Proposed tokens the target model agreed with.")
        self.draft_position_proposed_tokens = counter(
            "draft_position_proposed_tokens", "Tokens proposed, by their place in the proposal.", "position"
        )
        self.draft_position_accepted_tokens = counter(
            "draft_position_accepted_tokens", "Proposed tokens agreed with, by their place in the proposal.", "position"
        )
        self.encode_texts_waiting = gauge("encode_texts_waiting", "Texts that no encode pass has taken yet.")
        self.encode_passes = counter("encode_passes", "Encode passes run.")
        self.encode_texts = counter("encode_texts", "Texts encoded, or pairs scored.")
        self.encode_tokens = counter("encode_tokens", "Tokens of those texts; nothing is padded.")
        self.encode_pass_wall_seconds = counter("encode_pass_wall_seconds", "Host wall seconds of all encode passes.")
        registry.register(_DeviceTimingCollector(self))

        for protocol in PROTOCOLS:
            self.connections.labels(protocol)
            self.connections_open.labels(protocol)
        for reason in REFUSAL_REASONS:
            self.refused.labels(reason)

    def count_request(self, route: str, status: str) -> None:
        """Counts an answer in `requests`. Both labels are from short lists of ours."""
        # Looking a series up by its labels takes four times as long as counting in it.
        series = self._request_series.get((route, status))
        if series is None:
            series = self._request_series[route, status] = self.requests.labels(route, status)
        series.inc()

    def count_draft(self, num_proposed: int, num_accepted: int) -> None:
        """Counts one proposal: all of its places, and the first `num_accepted` of them as agreed with."""
        self.draft_proposed_tokens.inc(num_proposed)
        self.draft_accepted_tokens.inc(num_accepted)
        for position in range(1, num_proposed + 1):
            self.draft_position_proposed_tokens.labels(str(position)).inc()
            # The series is there as soon as something was proposed at its place.
            self.draft_position_accepted_tokens.labels(str(position)).inc(position <= num_accepted)

    def as_prometheus(self) -> bytes:
        """The registry in the Prometheus text format, version 0.0.4 (`PROMETHEUS_CONTENT_TYPE`)."""
        return generate_latest(_WithoutCreated(self.registry))

    def as_json(self) -> dict[str, Any]:
        """The registry as plain data, family by family without the prefix.

        A family without labels is a number; one with labels is an object for each label, in order
        (`requests[route][status]`); a histogram is `{"count", "sum", "buckets": {upper bound: cumulative count}}`.
        `device_timing` stands beside them in the shape the configuration reference gives it.
        """
        families = (metric for metric in self.registry.collect() if not metric.name.startswith(_TIMING_PREFIX))
        view: dict[str, Any] = {metric.name.removeprefix(f"{PREFIX}_"): _family_as_json(metric) for metric in families}
        timing = self.device_timing()
        view["device_timing"] = {
            "steps": view["steps"],
            "host_wall_seconds": view["step_wall_seconds"],
            "device_seconds": timing.device_seconds,
            "detail": timing.detail.value,
            "perturbed": timing.perturbed,
            "retained_steps": timing.retained_steps,
            "retained_dispatch_records": timing.retained_dispatch_records,
            "dispatches": {
                name: {
                    "count": totals.count,
                    "host_seconds": totals.host_seconds,
                    "device_seconds": totals.device_seconds,
                }
                for name, totals in timing.dispatches.items()
            },
        }
        return view


_TIMING_PREFIX = f"{PREFIX}_device_timing_"


class _DeviceTimingCollector(Collector):
    """Device timing as families; the device-time family has no series while the time is unknown."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        timing = self._metrics.device_timing()
        seconds = CounterMetricFamily(
            f"{_TIMING_PREFIX}device_seconds", "Device seconds of measured steps; no series when nothing measured them."
        )
        if timing.device_seconds is not None:
            seconds.add_metric([], timing.device_seconds)
        yield seconds
        detail = GaugeMetricFamily(
            f"{_TIMING_PREFIX}detail", "1 for the state of the retained per-dispatch detail.", labels=["state"]
        )
        for state in TimingDetail:
            detail.add_metric([state.value], float(state is timing.detail))
        yield detail
        perturbed = GaugeMetricFamily(f"{_TIMING_PREFIX}perturbed", "1 when collecting detail changed submission.")
        perturbed.add_metric([], float(timing.perturbed))
        yield perturbed
        for name, documentation, number in (
            ("retained_steps", "Steps whose detail is retained.", timing.retained_steps),
            ("retained_dispatch_records", "Dispatch records retained.", timing.retained_dispatch_records),
        ):
            yield GaugeMetricFamily(f"{_TIMING_PREFIX}{name}", documentation, value=number)
        count = CounterMetricFamily(
            f"{_TIMING_PREFIX}dispatches", "Retained dispatches, by operation.", labels=["dispatch"]
        )
        host = CounterMetricFamily(
            f"{_TIMING_PREFIX}dispatch_host_seconds", "Their host seconds, by operation.", labels=["dispatch"]
        )
        device = CounterMetricFamily(
            f"{_TIMING_PREFIX}dispatch_device_seconds",
            "Their device seconds, by operation; no series when nothing measured them.",
            labels=["dispatch"],
        )
        for name, totals in timing.dispatches.items():
            count.add_metric([name], totals.count)
            host.add_metric([name], totals.host_seconds)
            if totals.device_seconds is not None:
                device.add_metric([name], totals.device_seconds)
        yield from (count, host, device)


class _WithoutCreated(Collector):
    """A registry without the `_created` samples, which format 0.0.4 has no place for.

    prometheus_client can switch them off too, but only for the whole process.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if sample.name != f"{metric.name}_created"]
            yield metric


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _family_as_json(metric: Metric) -> Any:
    if metric.type == "histogram":
        buckets: dict[str, int | float] = {}
        view: dict[str, Any] = {"count": 0, "sum": 0, "buckets": buckets}
        for sample in metric.samples:
            match sample.name.removeprefix(metric.name):
                case "_bucket":
                    buckets[sample.labels["le"]] = _number(sample.value)
                case "_count" | "_sum" as suffix:
                    view[suffix[1:]] = _number(sample.value)
        return view
    nested: dict[str, Any] = {}
    for sample in metric.samples:
        if sample.name.endswith("_created"):
            continue
        if not sample.labels:
            return _number(sample.value)
        inner = nested
        *outer, last = sample.labels.values()
        for value in outer:
            inner = inner.setdefault(value, {})
        inner[last] = _number(sample.value)
    return nested
