"""From a checked request to what the engine is asked for: token ids, limits, one `GenerationRequest` a choice.

Synchronous and pure but for the seed that is drawn when a request names none. Long prompts take a while to tokenize;
`poot.api.answer` runs `prepare` functions of large bodies on a worker thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from poot.api.schema.chat import ChatRequest, template_messages
from poot.api.schema.common import GenerationFields
from poot.api.schema.completions import DEFAULT_MAX_TOKENS, CompletionRequest, Prompt
from poot.api.served import ServedEngine
from poot.engine.sequence import GenerationRequest, SamplingParams
from poot.engine.text import render_chat
from poot.errors import BadRequest, ContextLengthExceeded, UnsupportedCapability

_SEED_MASK = 2**64 - 1

T = TypeVar("T")

_DRAWN_SEED_BITS = 53
"""Of a seed that we draw: every JSON reader gives such an integer back as it was (RFC 8259, section 6)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Everything one HTTP request asks of the engine.

    Attributes:
        choices: one sequence each, prompt by prompt: choice j of prompt i is at i * num_drawn + j.
        num_drawn: sequences of each prompt.
        num_returned: how many of those are answered, the likeliest first where they are fewer.
        num_prompt_tokens: tokens of all prompts, each counted once whatever n is.
        num_logprobs: top log-probabilities with each token, None for none at all.
        echoes: the text of each prompt where it is part of the answer, else empty.
    """

    choices: tuple[GenerationRequest, ...]
    num_drawn: int
    num_returned: int
    num_prompt_tokens: int
    is_streamed: bool
    includes_usage: bool
    num_logprobs: int | None
    echoes: tuple[str, ...] = ()
    returns_token_ids: bool = False
    returns_timings: bool = False

    @property
    def seeds(self) -> list[int]:
        """The seed of each prompt."""
        return [choice.sampling.seed for choice in self.choices[:: self.num_drawn]]

    def echo(self, index: int) -> str:
        """The echoed prompt of the answer's choice `index`."""
        return self.echoes[index // self.num_returned] if self.echoes else ""


def prepare_completion(request: CompletionRequest, engine: ServedEngine) -> Prepared:
    """What a completion asks of the engine.

    Raises:
        UnsupportedCapability: the model does not generate.
        BadRequest: an empty prompt, a token id outside the vocabulary, a suffix where the model has no token for it.
        ContextLengthExceeded: a prompt leaves no room to generate.
    """
    _check_generates(engine)
    prompts = request.prompts
    is_list = len(prompts) > 1 or (isinstance(request.prompt, list) and not isinstance(request.prompt[0], int))
    ids = [
        _prompt_ids(prompt, engine, f"prompt[{index}]" if is_list else "prompt", request.suffix)
        for index, prompt in enumerate(prompts)
    ]
    echoes = [prompt if isinstance(prompt, str) else engine.tokenizer.decode(prompt) for prompt in prompts]
    return _prepare(
        request,
        engine,
        ids,
        num_logprobs=request.logprobs,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        num_drawn=request.num_drawn,
        echoes=tuple(echoes) if request.echo else (),
    )


def prepare_chat(request: ChatRequest, engine: ServedEngine) -> Prepared:
    """What a chat asks of the engine. Without a limit it may generate what max_seq leaves.

    Raises:
        UnsupportedCapability: the model does not generate or has no chat template, or a message holds something other
            than text.
        BadRequest: the template refuses the conversation; the message is the template's own.
        ContextLengthExceeded: the conversation leaves no room to generate.
    """
    _check_generates(engine)
    if engine.chat is None:
        raise UnsupportedCapability(
            "this model has no chat template; use /v1/completions, or start the server with --chat-template"
        )
    messages = template_messages(request)
    if request.continue_final_message and not messages[-1]["content"]:
        raise BadRequest(
            "continue_final_message: the last message has no content to continue", param="continue_final_message"
        )
    ids = render_chat(
        engine.chat,
        engine.tokenizer,
        messages,
        add_generation_prompt=request.adds_generation_prompt,
        continues_final=bool(request.continue_final_message),
        variables=request.chat_template_kwargs,
    )
    _check_length(ids, engine, "messages")
    return _prepare(
        request,
        engine,
        [ids],
        num_logprobs=request.num_logprobs,
        default_max_tokens=engine.model.max_seq,
        num_drawn=request.n or 1,
    )


def _check_generates(engine: ServedEngine) -> None:
    if not engine.generates:
        raise UnsupportedCapability(
            f"this model does not generate text (its task is {engine.model.task}); use /v1/embeddings or /v1/rerank"
        )


def _prompt_ids(prompt: Prompt, engine: ServedEngine, param: str, suffix: str | None) -> list[int]:
    if suffix:
        return _fim_prompt_ids(prompt, engine, param, suffix)
    ids = _text_ids(prompt, engine, param)
    _check_length(ids, engine, param)
    return ids


def _fim_prompt_ids(prompt: Prompt, engine: ServedEngine, param: str, suffix: str) -> list[int]:
    """The prompt of the text between `prompt` and `suffix`; what the tokenizer puts before a text stays in front."""
    tokenizer = engine.tokenizer
    if tokenizer.fim is None:
        raise BadRequest("suffix: this model has no tokens for fill-in-the-middle", param="suffix")
    after = tokenizer.encode(suffix, add_special=False, parse_special=True)
    if isinstance(prompt, str):
        before = tokenizer.encode(prompt, add_special=False, parse_special=True)
        ids = [*tokenizer.prefix_ids, *tokenizer.fim.prompt(before, after)]
    else:
        ids = tokenizer.fim.prompt(_text_ids(prompt, engine, param), after)
    _check_length(ids, engine, param)
    return ids


def _text_ids(prompt: Prompt, engine: ServedEngine, param: str) -> list[int]:
    if isinstance(prompt, str):
        # A raw prompt is all the caller's, so a special token it spells is meant as that token.
        return engine.tokenizer.encode(prompt, add_special=True, parse_special=True)
    for position, token_id in enumerate(prompt):
        _check_token(token_id, engine, f"{param}[{position}]")
    return prompt


def _check_token(token_id: int, engine: ServedEngine, param: str) -> None:
    vocab_size = engine.model.vocab_size
    if not 0 <= token_id < vocab_size:
        raise BadRequest(f"{param}: {token_id} is no token of this model (0 to {vocab_size - 1})", param=param)


def _check_length(ids: Sequence[int], engine: ServedEngine, param: str) -> None:
    if not ids:
        raise BadRequest(f"{param}: the prompt is empty, and this model has no token to begin with", param=param)
    longest = engine.model.max_seq - 1
    if len(ids) > longest:
        raise ContextLengthExceeded(
            f"the prompt has {len(ids)} tokens; this server takes at most {longest} (max_seq {engine.model.max_seq})",
            param=param,
        )


def _prepare(
    request: GenerationFields,
    engine: ServedEngine,
    prompts: list[list[int]],
    *,
    num_logprobs: int | None,
    default_max_tokens: int,
    num_drawn: int,
    echoes: tuple[str, ...] = (),
) -> Prepared:
    for position, token_id in enumerate(request.stop_token_ids or ()):
        _check_token(token_id, engine, f"stop_token_ids[{position}]")
    num_returned = request.n or 1
    limit = request.token_limit
    choices = []
    for ids in prompts:
        max_tokens = min(limit if limit is not None else default_max_tokens, engine.model.max_seq - len(ids))
        # How likely a sequence was in all is what the best of several are chosen by.
        num_sampled_logprobs = 0 if num_logprobs is None and num_drawn > num_returned else num_logprobs
        sampling = _sampling_params(request, engine, num_sampled_logprobs)
        prompt_ids = tuple(ids)
        choices += [
            GenerationRequest(
                prompt_ids=prompt_ids,
                sampling=sampling,
                max_tokens=max_tokens,
                min_tokens=min(request.min_tokens or 0, max_tokens),
                stop=request.stop_strings,
                ignore_eos=bool(request.ignore_eos),
                choice=choice,
                stop_token_ids=frozenset(request.stop_token_ids or ()),
                includes_stop=bool(request.include_stop_str_in_output),
                skips_special=request.skip_special_tokens is not False,
                num_prompt_logprobs=num_logprobs if echoes else None,
            )
            for choice in range(num_drawn)
        ]
    return Prepared(
        choices=tuple(choices),
        num_drawn=num_drawn,
        num_returned=num_returned,
        num_prompt_tokens=sum(map(len, prompts)),
        is_streamed=bool(request.stream),
        includes_usage=request.includes_usage,
        num_logprobs=num_logprobs,
        echoes=echoes,
        returns_token_ids=bool(request.return_token_ids),
        returns_timings=bool(request.return_timings),
    )


def _sampling_params(request: GenerationFields, engine: ServedEngine, num_logprobs: int | None) -> SamplingParams:
    """How one prompt's tokens are drawn: as the request says, else as the model's defaults do."""
    defaults = engine.model.sampling_defaults
    for token_id in request.logit_bias or ():
        _check_token(token_id, engine, f"logit_bias.{token_id}")

    def given(value: T | None, default: T) -> T:
        return default if value is None else value

    return SamplingParams(
        temperature=given(request.temperature, defaults.temperature),
        top_k=min(given(request.top_k, defaults.top_k), engine.model.vocab_size),
        top_p=given(request.top_p, defaults.top_p),
        min_p=given(request.min_p, defaults.min_p),
        # Drawn for each prompt: equal prompts of one request without a seed are different draws. With a seed a
        # prompt gives the same text whichever prompts stand beside it.
        seed=(
            request.seed & _SEED_MASK
            if request.seed is not None
            else int.from_bytes(os.urandom(8)) >> (64 - _DRAWN_SEED_BITS)
        ),
        num_logprobs=num_logprobs,
        logit_bias=tuple((request.logit_bias or {}).items()),
        presence_penalty=given(request.presence_penalty, 0.0),
        frequency_penalty=given(request.frequency_penalty, 0.0),
        repetition_penalty=given(request.repetition_penalty, defaults.repetition_penalty),
    )
