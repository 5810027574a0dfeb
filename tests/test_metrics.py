"""One registry, two views. Prometheus text is read back with the parser of prometheus_client."""

from __future__ import annotations

import json

from prometheus_client.parser import text_string_to_metric_families

from poot.metrics import PROTOCOLS, REFUSAL_REASONS, DeviceTiming, DispatchTotals, Metrics, TimingDetail

FAMILIES = {
    "requests": "counter",
    "connections_open": "gauge",
    "connections": "counter",
    "admission_pending": "gauge",
    "admission_receiving": "gauge",
    "refused": "counter",
    "queue_wait_seconds": "histogram",
    "rows_held": "gauge",
    "kv_blocks_held": "gauge",
    "kv_blocks_cached": "gauge",
    "prefix_cache_hit_tokens": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_seconds": "histogram",
    "prompt_tokens": "counter",
    "generated_tokens": "counter",
    "steps": "counter",
    "step_wall_seconds": "counter",
    "cancelled": "counter",
    "draft_proposed_tokens": "counter",
    "draft_accepted_tokens": "counter",
    "draft_position_proposed_tokens": "counter",
    "draft_position_accepted_tokens": "counter",
    "encode_texts_waiting": "gauge",
    "encode_passes": "counter",
    "encode_texts": "counter",
    "encode_tokens": "counter",
    "encode_pass_wall_seconds": "counter",
    "device_timing_device_seconds": "counter",
    "device_timing_detail": "gauge",
    "device_timing_perturbed": "gauge",
    "device_timing_retained_steps": "gauge",
    "device_timing_retained_dispatch_records": "gauge",
    "device_timing_dispatches": "counter",
    "device_timing_dispatch_host_seconds": "counter",
    "device_timing_dispatch_device_seconds": "counter",
}


def test_every_family_is_there_with_help_and_type_before_anything_was_counted() -> None:
    text = Metrics().as_prometheus().decode()
    for name, kind in FAMILIES.items():
        shown = f"poot_{name}_total" if kind == "counter" else f"poot_{name}"
        assert f"# TYPE {shown} {kind}\n" in text
        assert f"# HELP {shown} " in text
    assert text.count("# TYPE ") == len(FAMILIES)
    assert "_created" not in text


def test_label_values_known_in_advance_are_there_with_zero() -> None:
    text = Metrics().as_prometheus().decode()
    for reason in REFUSAL_REASONS:
        assert f'poot_refused_total{{reason="{reason}"}} 0.0\n' in text
    for protocol in PROTOCOLS:
        assert f'poot_connections_open{{protocol="{protocol}"}} 0.0\n' in text


def test_both_views_show_the_same_numbers() -> None:
    metrics = Metrics()
    metrics.requests.labels("/v1/completions", "200").inc(3)
    metrics.rows_held.set(2)
    metrics.step_wall_seconds.inc(0.25)
    metrics.queue_wait_seconds.observe(0.02)
    metrics.queue_wait_seconds.observe(7.0)
    view = json.loads(json.dumps(metrics.as_json(), allow_nan=False))
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.as_prometheus().decode())
        for sample in family.samples
    }
    assert view["requests"] == {"/v1/completions": {"200": 3}}
    assert samples["poot_requests_total", "/v1/completions", "200"] == 3
    assert view["rows_held"] == samples[("poot_rows_held",)] == 2
    assert view["step_wall_seconds"] == samples[("poot_step_wall_seconds_total",)] == 0.25
    wait = view["queue_wait_seconds"]
    assert (wait["count"], wait["sum"]) == (2, 7.02)
    assert wait["buckets"]["0.025"] == samples["poot_queue_wait_seconds_bucket", "0.025"] == 1
    assert wait["buckets"]["+Inf"] == samples["poot_queue_wait_seconds_bucket", "+Inf"] == 2


def test_every_family_but_the_timing_ones_is_in_the_json_view_by_its_name() -> None:
    expected = {name for name in FAMILIES if not name.startswith("device_timing")} | {"device_timing"}
    assert set(Metrics().as_json()) == expected


def test_unknown_device_time_is_null_and_its_series_is_absent() -> None:
    metrics = Metrics()
    metrics.steps.inc(4)
    metrics.step_wall_seconds.inc(1.5)
    assert metrics.as_json()["device_timing"] == {
        "steps": 4,
        "host_wall_seconds": 1.5,
        "device_seconds": None,
        "detail": "unavailable",
        "perturbed": False,
        "retained_steps": 0,
        "retained_dispatch_records": 0,
        "dispatches": {},
    }
    text = metrics.as_prometheus().decode()
    assert "\npoot_device_timing_device_seconds_total " not in text
    assert 'poot_device_timing_detail{state="unavailable"} 1.0\n' in text


def test_known_device_time_is_in_both_views() -> None:
    metrics = Metrics()
    timing = DeviceTiming(
        device_seconds=0.5,
        detail=TimingDetail.SAMPLED,
        perturbed=True,
        retained_steps=3,
        retained_dispatch_records=4,
        dispatches={"linear": DispatchTotals(3, 0.75, 0.5), "embed": DispatchTotals(1, 0.25, None)},
    )
    metrics.device_timing = lambda: timing
    block = metrics.as_json()["device_timing"]
    assert (block["device_seconds"], block["detail"], block["perturbed"]) == (0.5, "sampled", True)
    assert (block["retained_steps"], block["retained_dispatch_records"]) == (3, 4)
    assert block["dispatches"] == {
        "linear": {"count": 3, "host_seconds": 0.75, "device_seconds": 0.5},
        "embed": {"count": 1, "host_seconds": 0.25, "device_seconds": None},
    }
    text = metrics.as_prometheus().decode()
    assert "\npoot_device_timing_device_seconds_total 0.5\n" in text
    assert 'poot_device_timing_detail{state="sampled"} 1.0\n' in text
    assert 'poot_device_timing_detail{state="unavailable"} 0.0\n' in text
    assert "\npoot_device_timing_perturbed 1.0\n" in text
    assert "\npoot_device_timing_retained_steps 3.0\n" in text
    assert 'poot_device_timing_dispatch_host_seconds_total{dispatch="linear"} 0.75\n' in text
    assert 'poot_device_timing_dispatch_device_seconds_total{dispatch="linear"} 0.5\n' in text
    assert 'poot_device_timing_dispatch_device_seconds_total{dispatch="embed"}' not in text


def test_two_servers_in_one_process_do_not_share_a_number() -> None:
    first, second = Metrics(), Metrics()
    first.cancelled.inc()
    assert second.as_json()["cancelled"] == 0
