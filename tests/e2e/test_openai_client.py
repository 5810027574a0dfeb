"""What users of the official client rely on: completing, streaming, usage, and text that joins without a seam."""

from __future__ import annotations

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

FRANCE: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
# Greedy continuations of these hold characters of several tokens each (checked below).
WIDE_PROMPTS = [
    "Emoji: 🙂🙂🙂🙂 🎉🎉🎉🎉 🙂🙂🙂🙂 🎉🎉🎉🎉",
    "東京 東京 東京 東京 東京 東京",
    "日本語 한국어 中文 日本語 한국어 中文 日本語",
]
MODEL = "SmolLM2-135M-Instruct.Q4_1"


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_a_chat_completes(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0, max_tokens=16)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 37
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_chat_streams_in_the_shape_clients_expect(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=FRANCE,
            temperature=0,
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    roles = [chunk.choices[0].delta.role for chunk in chunks if chunk.choices]
    assert roles == ["assistant"] + [None] * (len(roles) - 1)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "The capital of France is Paris."
    finish = chunks[-2].choices[0]
    assert finish.finish_reason == "stop"
    assert not finish.delta.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 37
    assert all(chunk.usage is None for chunk in chunks[:-1])


def joined(client: openai.OpenAI, prompt: str, **fields: object) -> str:
    stream = client.completions.create(
        model=MODEL, prompt=prompt, temperature=0, stream=True, max_tokens=48, extra_body=fields
    )
    return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)


def whole(client: openai.OpenAI, prompt: str, **fields: object) -> openai.types.CompletionChoice:
    answer = client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=48, extra_body=fields)
    return answer.choices[0]


@pytest.mark.parametrize("prompt", WIDE_PROMPTS)
def test_joined_deltas_equal_the_whole_text_across_split_characters(client: openai.OpenAI, prompt: str) -> None:
    text = whole(client, prompt, ignore_eos=True).text
    assert joined(client, prompt, ignore_eos=True) == text
    assert any(len(character.encode()) > 2 for character in text), "the continuation has no wide character to split"


def test_joined_deltas_equal_the_whole_text_with_stop_strings_across_tokens(client: openai.OpenAI) -> None:
    prompt = "The capital of France is"
    free = whole(client, prompt).text
    stop = free[5:12]  # begins and ends inside tokens
    cut = whole(client, prompt, stop=[stop])
    assert cut.text == free[: free.index(stop)]
    assert cut.finish_reason == "stop"
    assert joined(client, prompt, stop=[stop]) == cut.text
    # A stop string that never comes holds nothing back for good.
    assert joined(client, prompt, stop=[free[5:12] + "\x00"]) == free


def test_choices_of_one_request_are_numbered_and_complete(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0.8, seed=7, n=3, max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    again = client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0.8, seed=7, n=3, max_tokens=8)
    assert [c.message.content for c in answer.choices] == [c.message.content for c in again.choices]
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_an_unknown_field_is_named(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=FRANCE, extra_body={"temprature": 1})
    assert caught.value.param == "temprature"


def test_max_tokens_beyond_the_context_ends_with_length(client: openai.OpenAI) -> None:
    long = "word " * 2000
    answer = client.completions.create(
        model=MODEL, prompt=long, temperature=0, max_tokens=4096, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 2048


def test_a_prompt_over_the_context_is_refused_with_both_counts(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="word " * 3000)
    assert caught.value.code == "context_length_exceeded"
    assert "2047" in caught.value.message
