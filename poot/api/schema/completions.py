"""The request of POST /v1/completions."""

from __future__ import annotations

from typing import Any

import msgspec

from poot.api.schema.common import GenerationFields, LogprobCount, Unavailable, check_common
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
    echo: Any = None
    suffix: Any = None

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


_UNAVAILABLE = Unavailable(
    {
        "echo": lambda given: given is False,
        "suffix": lambda given: given == "",
    }
)
_decoder = msgspec.json.Decoder(CompletionRequest)


def decode_completion(body: bytes, model_id: str) -> CompletionRequest:
    """The checked request in `body`, for the server of `model_id`.

    Raises:
        BadRequest, NotFound: as `decode` and `check_common` say.
    """
    request = decode(body, _decoder)
    check_common(request, model_id)
    _UNAVAILABLE.refuse(request)
    num_prompts = len(request.prompts)
    num_choices = num_prompts * (request.n or 1)
    if num_choices > MAX_PROMPTS:
        raise BadRequest(
            f"prompt: {num_prompts} prompts with n={request.n or 1} are {num_choices} choices; at most {MAX_PROMPTS}",
            param="prompt",
        )
    return request
