"""The request of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated

import msgspec

from poot.api.schema.common import MAX_CHOICES, GenerationFields, LogprobCount, check_common
from poot.api.schema.decode import decode
from poot.errors import BadRequest

MAX_PROMPTS = 2048
"""Prompts of one request, and choices of all of them together (OpenAI batches 2048 embedding inputs)."""

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default of this endpoint."""

Prompt = str | list[int]


class CompletionRequest(GenerationFields, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """As decoded; `prompts` sorts out the four forms of `prompt`."""

    prompt: str | list[str | int | list[int]]
    logprobs: LogprobCount | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None

    @property
    def num_drawn(self) -> int:
        """Sequences of each prompt, of which the `n` likeliest are the answer."""
        return max(self.best_of or 1, self.n or 1)

    @property
    def prompts(self) -> list[Prompt]:
        """One entry a prompt: text, or token ids.

        Raises:
            BadRequest: a list that mixes forms, or is empty.
        """
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise BadRequest("prompt: the list is empty", param="prompt")
        kind = type(prompt[0])
        for index, item in enumerate(prompt):
            if type(item) is not kind:
                raise BadRequest(
                    f"prompt[{index}]: strings, token ids and lists of token ids cannot be mixed",
                    param=f"prompt[{index}]",
                )
        if kind is int:
            return [[item for item in prompt if isinstance(item, int)]]
        return [item for item in prompt if not isinstance(item, int)]


_decoder = msgspec.json.Decoder(CompletionRequest)


def decode_completion(body: bytes, model_id: str) -> CompletionRequest:
    """The checked request in `body`, for the server of `model_id`.

    Raises:
        BadRequest, NotFound: as `decode` and `check_common` say.
    """
    request = decode(body, _decoder)
    check_common(request, model_id, allows_no_tokens=bool(request.echo))
    _check_best_of(request)
    if request.suffix and request.echo:
        raise BadRequest("suffix: an echo has no place for it; leave one of the two out", param="suffix")
    num_prompts = len(request.prompts)
    num_choices = num_prompts * request.num_drawn
    if num_choices > MAX_PROMPTS:
        raise BadRequest(
            f"prompt: {num_prompts} prompts with {request.num_drawn} choices each are {num_choices}; "
            f"at most {MAX_PROMPTS}",
            param="prompt",
        )
    return request


def _check_best_of(request: CompletionRequest) -> None:
    best_of, n = request.best_of, request.n or 1
    if best_of is None:
        return
    if best_of < n:
        raise BadRequest(f"best_of: {best_of} is less than n={n}", param="best_of")
    if request.stream and best_of > n:
        raise BadRequest("best_of: a stream cannot take back what it sent; best_of must equal n", param="best_of")
