"""Places are exact and always given back; rate windows are fixed, per peer, and of bounded memory."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot.api.limits import RATE_WINDOW_SECONDS, Places, RateWindow
from poot.errors import TooManyRequests
from poot.metrics import Metrics


def make_places(metrics: Metrics, num_places: int) -> Places:
    return Places(
        name="admits",
        flag="--max-pending-requests",
        num_places=num_places,
        gauge=metrics.admission_pending,
        refused=metrics.refused.labels("pending"),
    )


def test_one_more_than_the_places_is_refused_with_retry_after_and_counted() -> None:
    metrics = Metrics()
    places = make_places(metrics, 2)
    with places.hold(), places.hold():
        assert metrics.as_json()["admission_pending"] == 2
        with pytest.raises(TooManyRequests, match="--max-pending-requests") as caught, places.hold():
            pytest.fail("a third place")
    assert dict(caught.value.headers) == {"Retry-After": "1"}
    view = metrics.as_json()
    assert (view["admission_pending"], view["refused"]["pending"]) == (0, 1)


def test_a_place_is_given_back_when_its_block_fails() -> None:
    places = make_places(Metrics(), 1)
    for _ in range(3):
        with contextlib.suppress(KeyError), places.hold():
            raise KeyError
    assert places.num_held == 0


@given(st.lists(st.booleans(), max_size=40))
def test_places_held_never_exceed_the_number(comings_and_goings: list[bool]) -> None:
    places = make_places(Metrics(), 3)
    held: list[contextlib.AbstractContextManager[None]] = []
    for comes in comings_and_goings:
        if comes:
            place = places.hold()
            with contextlib.suppress(TooManyRequests):
                place.__enter__()
                held.append(place)
        elif held:
            held.pop(0).__exit__(None, None, None)
        assert places.num_held == len(held) <= 3


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_rate(clock: FakeClock, limit: int, *, max_peers: int = 100) -> RateWindow:
    return RateWindow(
        requests_per_window=limit, clock=clock, refused=Metrics().refused.labels("rate_limit"), max_peers=max_peers
    )


def test_zero_is_no_limit() -> None:
    rate = make_rate(FakeClock(), 0)
    for _ in range(1000):
        rate.spend("127.0.0.1")


def test_a_window_is_sixty_seconds_from_the_first_request_and_refusals_do_not_lengthen_it() -> None:
    clock = FakeClock()
    rate = make_rate(clock, 2)
    rate.spend("a")
    clock.now += 30.5
    rate.spend("a")
    with pytest.raises(TooManyRequests) as caught:
        rate.spend("a")
    assert dict(caught.value.headers) == {"Retry-After": "30"}  # 29.5 seconds are left
    clock.now += 29.0
    with pytest.raises(TooManyRequests) as caught:
        rate.spend("a")
    assert dict(caught.value.headers) == {"Retry-After": "1"}
    clock.now += 0.5
    rate.spend("a")
    rate.spend("a")
    with pytest.raises(TooManyRequests) as caught:
        rate.spend("a")
    assert dict(caught.value.headers) == {"Retry-After": "60"}


def test_peers_do_not_spend_from_each_other() -> None:
    rate = make_rate(FakeClock(), 1)
    rate.spend("a")
    rate.spend("b")
    for peer in ("a", "b"):
        with pytest.raises(TooManyRequests):
            rate.spend(peer)


def test_the_table_is_bounded_and_the_oldest_window_makes_room() -> None:
    clock = FakeClock()
    rate = make_rate(clock, 1, max_peers=2)
    for peer in ("a", "b", "c"):
        rate.spend(peer)
        clock.now += 1
    for peer in ("b", "c"):
        with pytest.raises(TooManyRequests):
            rate.spend(peer)
    rate.spend("a")  # was forgotten for c
    with pytest.raises(TooManyRequests):
        rate.spend("c")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 40)), max_size=60), st.integers(1, 4))
def test_no_peer_gets_more_than_its_limit_in_one_window(requests: list[tuple[str, float]], limit: int) -> None:
    clock = FakeClock()
    rate = make_rate(clock, limit)
    passed: dict[str, list[float]] = {}
    for peer, wait in requests:
        clock.now += wait
        with contextlib.suppress(TooManyRequests):
            rate.spend(peer)
            passed.setdefault(peer, []).append(clock.now)
    for times in passed.values():
        start, count = times[0], 0
        for time in times:
            if time - start >= RATE_WINDOW_SECONDS:
                start, count = time, 0
            count += 1
            assert count <= limit
