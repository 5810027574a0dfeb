from __future__ import annotations

import logging

import pytest

from poot.devices.base import MemoryBudget
from poot.engine.plan import Plan, fit
from poot.errors import CapacityError


def terms(num_rows: int, max_seq: int) -> dict[str, int]:
    """Weights of 1000 bytes, one byte of KV a position, 10 bytes of step a row."""
    return {"weights": 1000, "kv": num_rows * max_seq, "step": 10 * num_rows}


def fitted(available: int, *, num_rows: int = 4, max_seq: int = 4096, model_limit: int = 8192) -> Plan:
    budget = MemoryBudget(total_bytes=10**9, available_bytes=available)
    return fit(num_rows=num_rows, max_seq=max_seq, model_limit=model_limit, budget=budget, terms=terms)


@pytest.mark.parametrize(
    ("available", "num_rows", "max_seq"),
    [
        (1000 + 4 * 4096 + 40, 4, 4096),  # exactly what was asked for
        (1000 + 4 * 4096 + 39, 2, 4096),  # a byte less halves the rows
        (1000 + 1 * 4096 + 10, 1, 4096),
        (1000 + 1 * 4096 + 9, 1, 2048),  # rows are at 1: max_seq halves
        (1000 + 128 + 10, 1, 128),  # down to the floor
    ],
)
def test_rows_are_halved_first_and_then_max_seq(available: int, num_rows: int, max_seq: int) -> None:
    plan = fitted(available)
    assert (plan.num_rows, plan.max_seq) == (num_rows, max_seq)
    assert plan.total_bytes == 1000 + num_rows * max_seq + 10 * num_rows


def test_what_does_not_fit_is_refused_with_every_term() -> None:
    with pytest.raises(CapacityError) as caught:
        fitted(1000 + 128 + 9)
    assert caught.value.terms == {"weights": 1000, "kv": 128, "step": 10}
    assert caught.value.available_bytes == 1137
    for figure in ("1138", "1137", "weights 1000", "kv 128", "step 10"):
        assert figure in str(caught.value)


def test_every_halving_is_logged_with_its_bytes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="poot.plan"):
        plan = fitted(1000 + 2048 + 10, num_rows=2)
    assert [record.message for record in caplog.records] == [
        "plan: rows 2, max_seq 4096 does not fit (9212 bytes needed, 3058 available), trying rows 1, max_seq 4096",
        "plan: rows 1, max_seq 4096 does not fit (5106 bytes needed, 3058 available), trying rows 1, max_seq 2048",
    ]
    assert (plan.asked_rows, plan.asked_max_seq) == (2, 4096)


def test_max_seq_is_capped_at_the_models_own_limit() -> None:
    plan = fitted(10**6, model_limit=2048)
    assert (plan.max_seq, plan.asked_max_seq) == (2048, 4096)


def test_halving_stops_exactly_at_the_floor() -> None:
    assert fitted(1000 + 128 + 10, max_seq=200).max_seq == 128


def test_a_max_seq_asked_for_below_the_floor_is_kept() -> None:
    assert fitted(10**6, max_seq=64).max_seq == 64
    with pytest.raises(CapacityError):
        fitted(1000 + 64 + 9, num_rows=1, max_seq=64)
