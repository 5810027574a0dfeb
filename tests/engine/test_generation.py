from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot.devices.base import SampleLogprobs
from poot.engine.generation import Clock, Generation
from poot.engine.sequence import (
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    Sequence,
)
from tests.fakes.tokenizer import EOS_ID, SPECIAL, byte_tokenizer

TOKENIZER = byte_tokenizer()
USER_ID = SPECIAL["<|user|>"]


def generate(token_ids: list[int], *, stop: tuple[str, ...] = (), max_tokens: int = 1000, **fields: Any) -> list[Event]:
    """Events of a sequence that draws `token_ids`, up to where it ends."""
    send, receive = anyio.create_memory_object_stream[Event](1)
    send.close()
    receive.close()
    request = GenerationRequest(
        prompt_ids=(1,), sampling=SamplingParams(num_logprobs=0), max_tokens=max_tokens, stop=stop, **fields
    )
    sequence = Sequence(
        request=request,
        token_ids=[1],
        num_prompt_tokens=1,
        max_total_tokens=1 + max_tokens,
        stop_ids=request.stop_ids({EOS_ID}),
    )
    generation = Generation(sequence=sequence, tokenizer=TOKENIZER, send=send, clock=Clock(0.0))
    events: list[Event] = []
    for token_id in token_ids:
        sequence.token_ids.append(token_id)
        events += generation.accept(token_id, SampleLogprobs(-float(token_id), ()))
        if generation.is_over:
            break
    return events


def ids_of(events: list[Event]) -> list[int]:
    return [token_id for event in events if isinstance(event, Delta) for token_id in event.token_ids]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def reported(events: list[Event]) -> bytes:
    """The bytes of the tokens whose log-probabilities were sent."""
    deltas = [event for event in events if isinstance(event, Delta)]
    return b"".join(logprob.token_bytes for delta in deltas for logprob in delta.logprobs)


def end_of(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def test_an_end_token_is_counted_and_never_sent() -> None:
    events = generate([*b"ab", EOS_ID])
    assert text_of(events) == "ab"
    assert end_of(events).reason is FinishReason.STOP
    assert end_of(events).num_generated_tokens == 3
    assert ids_of(events) == [*b"ab", EOS_ID]
    assert reported(events) == b"ab"


def test_with_ignore_eos_the_end_token_adds_no_text_and_generation_goes_on() -> None:
    events = generate([*b"a", EOS_ID, *b"b"], ignore_eos=True, max_tokens=3)
    assert text_of(events) == "ab"
    assert end_of(events).reason is FinishReason.LENGTH


def test_a_character_split_over_tokens_is_sent_whole_with_all_its_logprobs() -> None:
    events = generate(list("é🙂".encode()), max_tokens=6)
    assert [event.text for event in events if isinstance(event, Delta)] == ["", "é", "", "", "", "🙂"]
    counts = [len(event.logprobs) for event in events if isinstance(event, Delta)]
    assert counts == [0, 2, 0, 0, 0, 4]


def test_length_in_the_middle_of_a_character_ends_with_a_replacement() -> None:
    events = generate(list("a🙂".encode())[:3], max_tokens=3)
    assert text_of(events) == "a�"
    assert reported(events) == "a🙂".encode()[:3]


def test_a_stop_string_across_tokens_is_cut_with_what_follows() -> None:
    events = generate(list(b"one two three"), stop=(" tw",))
    assert text_of(events) == "one"
    assert reported(events) == b"one"
    assert end_of(events).reason is FinishReason.STOP
    assert end_of(events).num_generated_tokens == len("one tw")


def test_what_could_have_become_a_stop_string_is_sent_at_the_end() -> None:
    events = generate(list(b"one tw"), stop=(" two",), max_tokens=6)
    assert text_of(events) == "one tw"
    assert reported(events) == b"one tw"
    assert end_of(events).reason is FinishReason.LENGTH
    assert text_of(generate([*b"one tw", EOS_ID], stop=(" two",))) == "one tw"


def test_a_stop_string_complete_at_the_last_token_is_a_stop_not_a_length() -> None:
    events = generate(list(b"xab"), stop=("ab",), max_tokens=3)
    assert text_of(events) == "x"
    assert end_of(events).reason is FinishReason.STOP


@given(
    text=st.text(st.sampled_from("ab🙂é "), max_size=20),
    stops=st.lists(st.text(st.sampled_from("ab🙂é "), min_size=1, max_size=4), max_size=3),
    is_ended=st.booleans(),
)
def test_the_text_is_cut_before_the_stop_string_that_begins_first(text: str, stops: list[str], is_ended: bool) -> None:
    token_ids = [*text.encode(), EOS_ID] if is_ended else list(text.encode())
    if not token_ids:
        return
    events = generate(token_ids, stop=tuple(stops), max_tokens=len(token_ids))
    found = [text.index(stop) for stop in stops if stop in text]
    expected = text[: min(found)] if found else text
    assert text_of(events) == expected
    assert expected.encode().startswith(reported(events)) or reported(events).startswith(expected.encode())
    assert end_of(events).reason is (FinishReason.STOP if found or is_ended else FinishReason.LENGTH)


@pytest.mark.parametrize("stop", [(), ("zz",)])
def test_every_token_is_in_one_delta(stop: tuple[str, ...]) -> None:
    events = generate(list(b"hello"), stop=stop, max_tokens=5)
    assert ids_of(events) == list(b"hello")


def test_a_stop_token_ends_the_text_also_with_ignore_eos() -> None:
    for ignore_eos in (False, True):
        events = generate(list(b"one two"), stop_token_ids=frozenset({ord(" ")}), ignore_eos=ignore_eos)
        assert text_of(events) == "one"
        assert end_of(events).reason is FinishReason.STOP
        assert ids_of(events) == list(b"one ")
    assert text_of(generate([EOS_ID, 98, 99], stop_token_ids=frozenset({99}), ignore_eos=True)) == "b"


def test_a_stop_that_is_included_is_the_end_of_the_text() -> None:
    cut = generate(list(b"one two"), stop=(" t",), includes_stop=True)
    assert text_of(cut) == "one t"
    assert reported(cut) == b"one t"
    by_token = generate(list(b"one two"), stop_token_ids=frozenset({ord("t")}), includes_stop=True)
    assert text_of(by_token) == "one t"
    assert reported(by_token) == b"one t"
    assert end_of(by_token).reason is FinishReason.STOP


def test_special_tokens_have_their_names_where_they_are_not_skipped() -> None:
    drawn = [97, USER_ID, 98, EOS_ID]
    assert text_of(generate(drawn)) == "ab"
    assert text_of(generate(drawn, skips_special=False)) == "a<|user|>b"
    shown = generate(drawn, skips_special=False, includes_stop=True)
    assert text_of(shown) == "a<|user|>b</s>"
    assert reported(shown) == b"a<|user|>b</s>"
    assert text_of(generate(drawn, includes_stop=True)) == "ab"
    # A name can complete a stop string.
    assert text_of(generate(drawn, skips_special=False, stop=("r|>b",))) == "a<|use"


def test_the_end_says_how_likely_all_generated_tokens_were() -> None:
    assert end_of(generate([10, 20, EOS_ID])).cumulative_logprob == -(10.0 + 20.0 + EOS_ID)


def test_no_tokens_asked_for_are_none_sent_or_counted() -> None:
    events = generate([97], max_tokens=0)
    assert events == [end_of(events)]
    assert end_of(events).num_generated_tokens == 0
    assert end_of(events).reason is FinishReason.LENGTH
