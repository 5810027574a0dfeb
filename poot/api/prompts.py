"""From a checked request to what the engine is asked for: token ids, limits, one `GenerationRequest` a choice.

Synchronous and pure but for the seed that is drawn when a request names none. Long prompts take a while to tokenize;
`poot.api.answer` runs `prepare` functions of large bodies on a worker thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from poot.api.schema.chat import ChatRequest, template_messages
from poot.api.schema.common import GenerationFields
from poot.api.schema.completions import DEFAULT_MAX_TOKENS, CompletionRequest, Prompt
from poot.api.served import ServedEngine
from poot.engine.sequence import GenerationRequest, SamplingParams
from poot.engine.text import render_chat
from poot.errors import BadRequest, ContextLengthExceeded, UnsupportedCapability

_SEED_MASK = 2**64 - 1

# OpenAI's defaults; those of a model's own generation_config are not read yet.
DEFAULT_TEMPERATURE = 1.0
DEFAULT_TOP_P = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Everything one HTTP request asks of the engine.

    Attributes:
        choices: one sequence each, prompt by prompt: choice j of prompt i is at i * n + j.
        num_prompt_tokens: tokens of all prompts, each counted once whatever n is.
        num_logprobs: top log-probabilities with each token, None for none at all.
    """

    choices: tuple[GenerationRequest, ...]
    num_prompt_tokens: int
    is_streamed: bool
    includes_usage: bool
    num_logprobs: int | None


def prepare_completion(request: CompletionRequest, engine: ServedEngine) -> Prepared:
    """What a completion asks of the engine.

    Raises:
        BadRequest: an empty prompt, a token id outside the vocabulary.
        ContextLengthExceeded: a prompt leaves no room to generate.
    """
    prompts = request.prompts
    is_list = len(prompts) > 1 or (isinstance(request.prompt, list) and not isinstance(request.prompt[0], int))
    ids = [
        _prompt_ids(prompt, engine, f"prompt[{index}]" if is_list else "prompt") for index, prompt in enumerate(prompts)
    ]
    return _prepare(request, engine, ids, num_logprobs=request.logprobs, default_max_tokens=DEFAULT_MAX_TOKENS)


def prepare_chat(request: ChatRequest, engine: ServedEngine) -> Prepared:
    """What a chat asks of the engine. Without a limit it may generate what max_seq leaves.

    Raises:
        UnsupportedCapability: the model has no chat template, or a message holds something other than text.
        BadRequest: the template refuses the conversation; the message is the template's own.
        ContextLengthExceeded: the conversation leaves no room to generate.
    """
    if engine.chat is None:
        raise UnsupportedCapability(
            "this model has no chat template; use /v1/completions, or start the server with --chat-template"
        )
    ids = render_chat(engine.chat, engine.tokenizer, template_messages(request))
    _check_length(ids, engine, "messages")
    return _prepare(request, engine, [ids], num_logprobs=request.num_logprobs, default_max_tokens=engine.model.max_seq)


def _prompt_ids(prompt: Prompt, engine: ServedEngine, param: str) -> list[int]:
    if isinstance(prompt, str):
        # A raw prompt is all the caller's, so a special token it spells is meant as that token.
        ids = engine.tokenizer.encode(prompt, add_special=True, parse_special=True)
    else:
        vocab_size = engine.model.vocab_size
        for position, token_id in enumerate(prompt):
            if not 0 <= token_id < vocab_size:
                raise BadRequest(
                    f"{param}[{position}]: {token_id} is no token of this model (0 to {vocab_size - 1})",
                    param=f"{param}[{position}]",
                )
        ids = prompt
    _check_length(ids, engine, param)
    return ids


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
) -> Prepared:
    limit = request.token_limit
    choices = []
    for ids in prompts:
        max_tokens = min(limit if limit is not None else default_max_tokens, engine.model.max_seq - len(ids))
        sampling = SamplingParams(
            temperature=request.temperature if request.temperature is not None else DEFAULT_TEMPERATURE,
            top_k=min(request.top_k or 0, engine.model.vocab_size),
            top_p=request.top_p if request.top_p is not None else DEFAULT_TOP_P,
            min_p=request.min_p or 0.0,
            # Drawn for each prompt: equal prompts of one request without a seed are different draws. With a seed a
            # prompt gives the same text whichever prompts stand beside it.
            seed=(request.seed & _SEED_MASK) if request.seed is not None else int.from_bytes(os.urandom(8)),
            num_logprobs=num_logprobs,
        )
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
            )
            for choice in range(request.n or 1)
        ]
    return Prepared(
        choices=tuple(choices),
        num_prompt_tokens=sum(map(len, prompts)),
        is_streamed=bool(request.stream),
        includes_usage=request.includes_usage,
        num_logprobs=num_logprobs,
    )
