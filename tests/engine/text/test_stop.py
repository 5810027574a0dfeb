from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from poot.engine.text import StopMatcher

STOPS = st.lists(st.text("ab", min_size=1, max_size=8), max_size=16)


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    """What is sent in all, and whether a stop string ended it."""
    matcher = StopMatcher(stops)
    sent = ""
    for piece in pieces:
        text, is_stopped = matcher.push(piece)
        sent += text
        if is_stopped:
            return sent, True
    text, is_stopped = matcher.flush()
    return sent + text, is_stopped


def search(stops: list[str], text: str) -> tuple[str, bool]:
    """The rule by searching the whole text: it ends before the stop string that begins first."""
    found = [text.find(stop) for stop in stops if stop in text]
    return (text[: min(found)], True) if found else (text, False)


@given(STOPS, st.lists(st.text("abc", max_size=6), max_size=8))
@example(["ab", "b"], ["ab"])
@example(["b", "ab"], ["ab"])
@example(["aabaaabaab"], ["aabaaabaaabaab"])
@settings(max_examples=300)
def test_any_chunking_gives_what_a_search_of_the_whole_text_gives(stops: list[str], pieces: list[str]) -> None:
    assert run(stops, pieces) == search(stops, "".join(pieces))


@given(STOPS, st.text("abc", max_size=30))
def test_only_what_can_still_become_a_match_is_held_back(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    sent = ""
    for end in range(1, len(text) + 1):
        piece, is_stopped = matcher.push(text[end - 1])
        sent += piece
        if is_stopped:
            return
        seen = text[:end]
        if any(stop in seen for stop in stops):
            continue  # a match waits for a longer one that begins earlier
        open_starts = [start for start in range(end) if any(stop.startswith(seen[start:]) for stop in stops)]
        assert sent == seen[: min(open_starts, default=end)]


def test_a_stop_string_over_three_pushes_is_not_sent_nor_what_follows() -> None:
    matcher = StopMatcher(["</s>"])
    assert matcher.push("Hi<") == ("Hi", False)
    assert matcher.push("/s") == ("", False)
    assert matcher.push("> more") == ("", True)


def test_a_false_start_is_sent_once_it_is_one() -> None:
    matcher = StopMatcher(["</s>"])
    assert matcher.push("a<") == ("a", False)
    assert matcher.push("b") == ("<b", False)


def test_the_string_that_begins_first_wins_over_the_one_that_ends_first() -> None:
    matcher = StopMatcher(["b", "abcd"])
    assert matcher.push("xabc") == ("x", False)
    assert matcher.push("d!") == ("", True)


def test_a_complete_string_ends_the_text_when_the_earlier_one_breaks_off() -> None:
    matcher = StopMatcher(["b", "abcd"])
    assert matcher.push("xabc") == ("x", False)
    assert matcher.push("-") == ("a", True)


def test_a_complete_string_ends_the_text_when_the_sequence_does() -> None:
    matcher = StopMatcher(["b", "abcd"])
    assert matcher.push("abc") == ("", False)
    assert matcher.flush() == ("a", True)


def test_a_longer_string_that_begins_with_the_complete_one_is_not_waited_for() -> None:
    assert StopMatcher(["ab", "abcd"]).push("xab") == ("x", True)


def test_what_is_held_is_flushed_when_no_string_came() -> None:
    matcher = StopMatcher(["\n\n"])
    assert matcher.push("end\n") == ("end", False)
    assert matcher.flush() == ("\n", False)


def test_without_stop_strings_everything_passes() -> None:
    matcher = StopMatcher([])
    assert matcher.push("text") == ("text", False)
    assert matcher.flush() == ("", False)


@pytest.mark.parametrize("text", ["a" * 40_000, "a" * 39_999 + "c"])
def test_time_grows_linearly_on_the_worst_text(text: str) -> None:
    stops = ["a" * length + "b" for length in range(1000, 1016)]
    started = time.perf_counter()
    assert run(stops, [text]) == (text, False)
    # Comparing 1,000 characters at each place would take over a minute; linear work is 0.3 s.
    assert time.perf_counter() - started < 5.0


@given(STOPS, st.lists(st.text("abc", max_size=6), max_size=8))
@settings(max_examples=200)
def test_an_included_stop_is_the_shortest_of_those_that_begin_first(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops, includes_stop=True)
    sent, is_stopped = "", False
    for piece in pieces:
        text, is_stopped = matcher.push(piece)
        sent += text
        if is_stopped:
            break
    if not is_stopped:
        text, is_stopped = matcher.flush()
        sent += text
    text = "".join(pieces)
    found = [(text.find(stop), len(stop)) for stop in stops if stop in text]
    start, length = min(found, default=(len(text), 0))
    assert (sent, is_stopped) == (text[: start + length], bool(found))
