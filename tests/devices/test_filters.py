"""What the filters keep, against sorting everything in f64, at sizes that take every path."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from poot.devices.filters import heaviest, invert, most_likely

F32 = npt.NDArray[np.float32]


def by_falling_value(values: F32) -> list[int]:
    return sorted(range(len(values)), key=lambda index: (-float(values[index]), index))


def make(num_tokens: int, spread: float, seed: int, decimals: int | None) -> tuple[F32, F32]:
    """Logits, rounded so that many are equal where `decimals` says so, and their weights."""
    logits = np.random.default_rng(seed).standard_normal(num_tokens) * spread
    values = (logits if decimals is None else logits.round(decimals)).astype(np.float32)
    return values, np.exp(values - values.max())


SHAPES = [(1, 1.0, None), (50, 1.0, None), (50, 1.0, 0), (20_000, 4.0, None), (20_000, 1.0, None), (20_000, 1.0, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("share", [1e-6, 0.1, 0.5, 0.95, 0.999])
def test_heaviest_is_the_shortest_prefix(shape: tuple[int, float, int | None], share: float) -> None:
    values, weights = make(shape[0], shape[1], 1, shape[2])
    target = share * float(weights.sum(dtype=np.float64))
    order = by_falling_value(values)
    count, mass = 0, 0.0
    while mass < target:
        mass += float(weights[order[count]])
        count += 1
    assert heaviest(values, weights, target).tolist() == sorted(order[:count])


def test_heaviest_of_equals_are_the_lower_ids() -> None:
    values = np.zeros(30_000, np.float32)
    kept = heaviest(values, np.ones(30_000, np.float32), 12_345.5)
    assert kept.tolist() == list(range(12_346))


def test_heaviest_includes_the_token_that_crosses() -> None:
    weights = np.array([0.5, 1.0, 0.5], np.float32)
    assert heaviest(weights, weights, 1.0).tolist() == [1]
    assert heaviest(weights, weights, 1.0001).tolist() == [0, 1]
    assert heaviest(weights, weights, 2.0).tolist() == [0, 1, 2]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("count", [1, 7, 50])
def test_most_likely(shape: tuple[int, float, int | None], count: int) -> None:
    values, _ = make(shape[0], shape[1], 2, shape[2])
    count = min(count, len(values))
    assert most_likely(values, count).tolist() == sorted(by_falling_value(values)[:count])


def test_most_likely_may_reach_into_the_banned() -> None:
    values = np.array([-np.inf, 1.0, -np.inf, -np.inf], np.float32)
    assert most_likely(values, 2).tolist() == [0, 1]


@pytest.mark.parametrize("num_tokens", [1, 3, 1024, 1025, 5000])
def test_invert_finds_the_token_that_passes_the_point(num_tokens: int) -> None:
    rng = np.random.default_rng(3)
    weights = rng.integers(0, 3, num_tokens).astype(np.float32)  # whole numbers: sums are exact in any order
    weights[num_tokens // 2] = 1
    total = int(weights.sum())
    owners = np.repeat(np.arange(num_tokens), weights.astype(np.int64))
    for point in (0.0, 1 - 2.0**-53, *rng.random(200)):
        assert invert(weights, point) == owners[min(int(point * total), total - 1)]
