"""The sampler against distributions computed in f64 by sorting, and its promises about seeds, ties and broken rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from poot.devices import sampler
from poot.devices.sampler import sample
from tests.devices.steps import sampling

NUM_TOKENS = 60
NUM_DRAWS = 3000


def make_logits(num_rows: int = 1, num_tokens: int = NUM_TOKENS, spread: float = 2.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(num_rows, num_tokens, generator=generator)


def distribution(
    logits: npt.NDArray[np.float64], *, temperature: float, top_k: int = 0, top_p: float = 1, min_p: float = 0
) -> npt.NDArray[np.float64]:
    """The probability of every token, filter after filter, each by sorting and renormalising."""

    def normalised(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        shares: npt.NDArray[np.float64] = weights / weights.sum()
        return shares

    probabilities = normalised(np.exp((logits - logits.max()) / temperature))
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if top_k:
        probabilities[order[top_k:]] = 0
        probabilities = normalised(probabilities)
    if top_p < 1:
        before = np.cumsum(probabilities[order]) - probabilities[order]
        probabilities[[token for token, mass in zip(order, before, strict=True) if mass >= top_p]] = 0
        probabilities = normalised(probabilities)
    probabilities[probabilities < min_p * probabilities.max()] = 0
    return normalised(probabilities)


FILTERS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 7},
    {"temperature": 1.0, "top_k": 1000},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 1.0, "top_p": 0.01},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.8},
    {"temperature": 0.8, "top_k": 30, "min_p": 0.05},
    {"temperature": 1.3, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.3, "top_k": 25, "top_p": 0.9, "min_p": 0.04},
]


@pytest.mark.parametrize("parameters", FILTERS, ids=str)
def test_draws_follow_the_distribution(parameters: dict[str, Any]) -> None:
    logits = make_logits()
    batch = sampling(NUM_DRAWS, seed=11, position=np.arange(NUM_DRAWS), **parameters)
    drawn = np.array(sample(logits.expand(NUM_DRAWS, -1), batch).token_ids)
    wanted = distribution(logits[0].double().numpy(), **parameters)
    counts = np.bincount(drawn, minlength=NUM_TOKENS)
    assert not counts[wanted == 0].any()
    expected = wanted * NUM_DRAWS
    rare = expected < 5  # chi-square needs at least five a class, so the rare tokens are one class
    classes = [*zip(counts[~rare], expected[~rare], strict=True), (counts[rare].sum(), expected[rare].sum())]
    statistic = sum((count - e) ** 2 / e for count, e in classes if e > 0)
    freedom = sum(e > 0 for _, e in classes) - 1
    # The value passed by one seed in ten thousand (Wilson and Hilferty 1931).
    bound = freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3 if freedom else 1e-9
    assert statistic <= bound


@pytest.mark.parametrize("parameters", [{}, {"top_p": 0.95}, {"top_k": 50}, {"min_p": 0.02}], ids=str)
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_draws_from_a_large_vocabulary_stay_among_the_kept(parameters: dict[str, Any], spread: float) -> None:
    logits = make_logits(num_tokens=50_000, spread=spread)
    batch = sampling(60, seed=3, position=np.arange(60), temperature=0.8, **parameters)
    wanted = distribution(logits[0].double().numpy(), temperature=float(np.float32(0.8)), **parameters)
    drawn = list(sample(logits.expand(60, -1), batch).token_ids)
    assert (wanted[drawn] > 0).all()
    assert len(set(drawn)) > 2


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    logits = torch.zeros(3, 8)
    logits[0, [2, 5]] = 3.0
    logits[2] = -1.0
    assert sample(logits, sampling(3)).token_ids == (2, 0, 0)


@pytest.mark.parametrize("parameters", [{"top_k": 2}, {"top_p": 0.5}], ids=str)
def test_filters_keep_the_lower_ids_of_equals(parameters: dict[str, Any]) -> None:
    batch = sampling(200, temperature=1, position=np.arange(200), **parameters)
    assert set(sample(torch.zeros(200, 4), batch).token_ids) == {0, 1}


def test_a_tiny_temperature_is_greedy_and_silent() -> None:
    logits = make_logits(50)
    greedy = sample(logits, sampling(50)).token_ids
    for temperature in (1e-6, 1e-30, 1e-44):  # the last is subnormal in f32
        assert sample(logits, sampling(50, temperature=temperature, seed=np.arange(50))).token_ids == greedy


@pytest.mark.parametrize(("point", "token"), [(0.0, 1), (1 - 2.0**-53, 3)])
def test_the_ends_of_the_unit_interval_draw_possible_tokens(
    point: float, token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "uniform", lambda seed, choice, position: point)
    batch = sampling(1, temperature=1, banned=((0, 4),))
    assert sample(torch.zeros(1, 5), batch).token_ids == (token,)


PARAMETERS: dict[str, Any] = {
    "temperature": np.array([0, 1, 0.7, 1, 1.2, 0.9]),
    "top_k": np.array([0, 0, 10, 0, 40, 0]),
    "top_p": np.array([1, 1, 1, 0.8, 0.9, 0.3]),
    "min_p": np.array([0, 0, 0, 0, 0.05, 0.1]),
    "seed": np.array([1, 2, 2, 2**63, 2**64 - 1, 5], np.uint64),
    "choice": np.array([0, 0, 1, 0, 3, 0]),
    "position": np.array([9, 9, 9, 4000, 1, 9]),
    "banned": ((), (3,), (), (0, 1), (), ()),
    "num_logprobs": (None, 3, None, 0, 20, None),
}


def rows_of(rows: list[int]) -> dict[str, Any]:
    return {
        name: tuple(values[row] for row in rows) if isinstance(values, tuple) else values[rows]
        for name, values in PARAMETERS.items()
    }


def test_a_token_does_not_depend_on_the_rest_of_the_batch() -> None:
    logits = make_logits(6, num_tokens=1000)
    together = sample(logits, sampling(6, **rows_of(list(range(6)))))
    for row in range(6):
        alone = sample(logits[row : row + 1].clone(), sampling(1, **rows_of([row])))
        assert (alone.token_ids[0], alone.logprobs[0]) == (together.token_ids[row], together.logprobs[row])
    order = [4, 1, 5, 0, 3, 2]
    shuffled = sample(logits[order], sampling(6, **rows_of(order)))
    assert shuffled.token_ids == tuple(together.token_ids[row] for row in order)


def test_seed_choice_and_position_change_the_draw_and_nothing_else_does() -> None:
    logits = make_logits(num_tokens=5000, spread=0.1).expand(20, -1)

    def draw(**changes: Any) -> tuple[int, ...]:
        return sample(logits, sampling(20, temperature=1, **changes)).token_ids

    assert len(set(draw(seed=5))) == 1
    for name in ("seed", "choice", "position"):
        assert len(set(draw(**{name: np.arange(20)}))) > 15
    assert draw(position=np.arange(20)) == draw(position=np.arange(20))


def test_banned_tokens_are_never_drawn() -> None:
    logits = make_logits(300)
    best = logits.argmax(dim=1)
    banned = tuple((int(token), 7) for token in best)
    for temperature in (0.0, 1.0):
        drawn = sample(logits, sampling(300, temperature=temperature, position=np.arange(300), banned=banned)).token_ids
        assert all(token not in row for token, row in zip(drawn, banned, strict=True))
    assert sample(logits, sampling(300)).token_ids == tuple(best.tolist())  # the logits were not changed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_row_fails_alone(temperature: float) -> None:
    logits = make_logits(5)
    healthy = sample(logits, sampling(5, temperature=temperature, num_logprobs=(1,) * 5))
    logits[1, 50] = float("nan")
    logits[3, 2] = float("inf")
    everything = tuple(range(NUM_TOKENS))
    banned = ((), (), (), (), everything)
    result = sample(logits, sampling(5, temperature=temperature, num_logprobs=(1,) * 5, banned=banned))
    assert result.failed == {1, 3, 4}
    assert [result.token_ids[row] for row in (1, 3, 4)] == [0, 0, 0]
    assert [result.logprobs[row] for row in (1, 3, 4)] == [None, None, None]
    assert [result.token_ids[row] for row in (0, 2)] == [healthy.token_ids[row] for row in (0, 2)]
    assert [result.logprobs[row] for row in (0, 2)] == [healthy.logprobs[row] for row in (0, 2)]
    assert healthy.failed == frozenset()


def test_logprobs_are_of_the_models_own_distribution() -> None:
    logits = make_logits(2)
    banned = ((int(logits[0].argmax()),), ())
    batch = sampling(2, temperature=0.3, top_k=5, banned=banned, num_logprobs=(4, 0))
    result = sample(logits, batch)
    wanted = torch.log_softmax(logits.double(), dim=1)
    first, second = result.logprobs
    assert first is not None
    assert second is not None
    assert first.logprob == pytest.approx(float(wanted[0, result.token_ids[0]]), abs=1e-5)
    assert [token for token, _ in first.top] == wanted[0].argsort(descending=True)[:4].tolist()
    assert [value for _, value in first.top] == pytest.approx(
        wanted[0].sort(descending=True).values[:4].tolist(), abs=1e-5
    )
    assert second.logprob == pytest.approx(float(wanted[1, result.token_ids[1]]), abs=1e-5)
    assert second.top == ()


def test_top_logprobs_of_equals_come_by_id() -> None:
    logits = torch.zeros(1, 6)
    logits[0, 4] = 1.0
    (logprobs,) = sample(logits, sampling(1, num_logprobs=(4,))).logprobs
    assert logprobs is not None
    assert [token for token, _ in logprobs.top] == [4, 0, 1, 2]
    assert logprobs.logprob == logprobs.top[0][1]


def test_more_logprobs_than_tokens_are_all_of_them() -> None:
    (logprobs,) = sample(torch.zeros(1, 3), sampling(1, num_logprobs=(20,))).logprobs
    assert logprobs is not None
    assert [token for token, _ in logprobs.top] == [0, 1, 2]


def test_no_samples_give_no_tokens() -> None:
    result = sample(torch.zeros(0, 10), sampling(0))
    assert (result.token_ids, result.logprobs, result.failed) == ((), (), frozenset())
