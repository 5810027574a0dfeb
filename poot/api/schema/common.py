"""What both generation endpoints have in common: the sampling fields, and fields poot knows but has not built.

Ranges and types are checked by msgspec while decoding; here, what needs two fields or a number beyond 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Annotated, Any

import msgspec

from poot.errors import BadRequest, NotFound

MAX_CHOICES = 128
"""Most choices of one prompt (OpenAI: 128)."""
MAX_STOP_STRINGS = 16
"""OpenAI takes 4, vLLM any number; each costs time on every token."""
MAX_LOGPROBS = 20
"""OpenAI's chat limit, for both endpoints."""
MAX_STOP_TOKENS = 128
"""vLLM takes any number. A request that names more means a mask, which `logit_bias` is."""
MAX_BIASED_TOKENS = 1024
"""vLLM's limit. OpenAI takes 300."""

_SEED_MIN, _SEED_MAX = -(2**63), 2**64 - 1

Count = Annotated[int, msgspec.Meta(ge=1)]
LogprobCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)]
StopString = Annotated[str, msgspec.Meta(min_length=1)]
# msgspec takes one constrained str in a union, so a lone empty string is refused by `stop_strings`.
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Bias = Annotated[float, msgspec.Meta(ge=-100, le=100)]
TokenId = Annotated[int, msgspec.Meta(ge=0)]
StopStrings = str | Annotated[list[StopString], msgspec.Meta(max_length=MAX_STOP_STRINGS)] | None


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class GenerationFields(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Fields of both generation endpoints. None is unset, as JSON null is."""

    model: str | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    max_completion_tokens: Count | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    seed: int | None = None
    stop: StopStrings = None
    ignore_eos: bool | None = None
    logit_bias: Annotated[dict[TokenId, Bias], msgspec.Meta(max_length=MAX_BIASED_TOKENS)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=10)] | None = None
    stop_token_ids: Annotated[list[TokenId], msgspec.Meta(max_length=MAX_STOP_TOKENS)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    return_token_ids: bool | None = None
    return_timings: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Say who asks, for the operator's policy in front of poot; they change nothing here.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # Known and not built: see UNAVAILABLE.
    response_format: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def token_limit(self) -> int | None:
        """The most tokens asked for, under either name."""
        return self.max_tokens if self.max_tokens is not None else self.max_completion_tokens


Neutral = Callable[[Any], bool]


class Unavailable:
    """Fields that are known and not built.

    Args:
        neutral: by name, what tells the values that ask for nothing. null always does.
    """

    def __init__(self, neutral: Mapping[str, Neutral]) -> None:
        self._neutral = neutral
        self._values = attrgetter(*neutral)
        self._absent = (None,) * len(neutral)

    def refuse(self, request: GenerationFields) -> None:
        """Passes a request whose fields are all absent, null or neutral.

        Raises:
            BadRequest: the first that is not, by name.
        """
        values = self._values(request)
        if values == self._absent:
            return
        for (name, is_neutral), given in zip(self._neutral.items(), values, strict=True):
            if given is not None and not is_neutral(given):
                raise BadRequest(f"{name} is not available yet", param=name)


def _one_of(*values: Any) -> Neutral:
    """Equal to one of `values`, and of the same kind: true is not 1."""
    return lambda given: any(given == value and isinstance(given, bool) == isinstance(value, bool) for value in values)


_NEVER: Neutral = lambda given: False  # noqa: E731 - reads as an entry of the tables below

UNAVAILABLE = Unavailable(
    {
        "response_format": _one_of({"type": "text"}),
        "guided_json": _NEVER,
        "guided_regex": _NEVER,
        "guided_choice": _NEVER,
        "guided_grammar": _NEVER,
        "metadata": _one_of({}),
        "store": _one_of(False),
        "service_tier": _one_of("auto", "default"),
    }
)
"""Those of both endpoints."""


def check_model(model: str | None, model_id: str) -> None:
    """Passes a request that names the served model, or none.

    Raises:
        NotFound: another one.
    """
    if model is not None and model != model_id:
        raise NotFound(f"no such model; this server serves {model_id!r}", param="model", code="model_not_found")


def check_common(request: GenerationFields, model_id: str, *, allows_no_tokens: bool = False) -> None:
    """The checks of both endpoints that a type cannot express; `allows_no_tokens` lets max_tokens be 0.

    Raises:
        NotFound: another model than the served one.
        BadRequest: a field that is not built, or one at odds with another.
    """
    check_model(request.model, model_id)
    UNAVAILABLE.refuse(request)
    if request.max_tokens == 0 and not allows_no_tokens:
        raise BadRequest("max_tokens: expected at least 1 (0 with echo on /v1/completions)", param="max_tokens")
    if request.seed is not None and not _SEED_MIN <= request.seed <= _SEED_MAX:
        raise BadRequest(f"seed: expected a 64-bit integer, {_SEED_MIN} to {_SEED_MAX}", param="seed")
    if request.stop == "":
        raise BadRequest("stop: a stop string must not be empty", param="stop")
    if (
        request.max_tokens is not None
        and request.max_completion_tokens is not None
        and request.max_tokens != request.max_completion_tokens
    ):
        raise BadRequest(
            "max_tokens and max_completion_tokens are two names of one limit, and they differ",
            param="max_completion_tokens",
        )
    limit = request.token_limit
    if limit is not None and request.min_tokens is not None and request.min_tokens > limit:
        raise BadRequest(
            f"min_tokens: {request.min_tokens} is more than the limit of {limit} tokens", param="min_tokens"
        )
    if request.stream_options is not None:
        if not request.stream:
            raise BadRequest("stream_options needs stream: true", param="stream_options")
        if request.stream_options.include_obfuscation:
            raise BadRequest(
                "stream_options.include_obfuscation is not available", param="stream_options.include_obfuscation"
            )
