"""The request of POST /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from poot.api.schema.common import Count, check_model
from poot.api.schema.decode import decode
from poot.errors import BadRequest

MAX_INPUTS = 2048
"""Inputs of one request (OpenAI: 2048)."""

WHOLE_MODEL = -1
"""As `truncate_prompt_tokens`: cut to what the model reads (vLLM)."""

Input = str | list[int]


class EmbeddingRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """As decoded; `inputs` sorts out the four forms of `input`. None is unset, as JSON null is."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    pooling: Literal["mean", "cls", "last"] | None = None
    normalize: bool | None = None
    truncate: bool | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=WHOLE_MODEL)] | None = None
    prompt_name: str | None = None
    # Says who asks, for the operator's policy in front of poot; it changes nothing here.
    user: str | None = None

    @property
    def is_list(self) -> bool:
        """Whether `input` is several inputs, so that messages name the one they mean."""
        return isinstance(self.input, list) and not (self.input and isinstance(self.input[0], int))

    @property
    def inputs(self) -> list[Input]:
        """One entry an input: text, or token ids.

        Raises:
            BadRequest: a list that mixes forms, or is empty.
        """
        given = self.input
        if isinstance(given, str):
            return [given]
        if not given:
            raise BadRequest("input: the list is empty", param="input")
        kind = type(given[0])
        for index, item in enumerate(given):
            if type(item) is not kind:
                raise BadRequest(
                    f"input[{index}]: strings, token ids and lists of token ids cannot be mixed",
                    param=f"input[{index}]",
                )
        if kind is int:
            return [[item for item in given if isinstance(item, int)]]
        return [item for item in given if not isinstance(item, int)]

    def param_of(self, index: int) -> str:
        """The path of input `index`."""
        return f"input[{index}]" if self.is_list else "input"


_decoder = msgspec.json.Decoder(EmbeddingRequest)


def decode_embeddings(body: bytes, model_id: str) -> EmbeddingRequest:
    """The checked request in `body`, for the server of `model_id`.

    Raises:
        BadRequest: as `decode` says; no inputs, too many, or an empty one.
        NotFound: another model than the served one.
    """
    request = decode(body, _decoder)
    check_model(request.model, model_id)
    inputs = request.inputs
    if len(inputs) > MAX_INPUTS:
        raise BadRequest(f"input: {len(inputs)} inputs; at most {MAX_INPUTS}", param="input")
    for index, item in enumerate(inputs):
        if not item:
            param = request.param_of(index)
            raise BadRequest(f"{param}: the input is empty", param=param)
    if request.truncate_prompt_tokens == 0:
        raise BadRequest("truncate_prompt_tokens: expected at least 1, or -1", param="truncate_prompt_tokens")
    if request.truncate is False and request.truncate_prompt_tokens is not None:
        raise BadRequest(
            "truncate: false and truncate_prompt_tokens contradict each other", param="truncate_prompt_tokens"
        )
    if request.prompt_name is not None and not isinstance(inputs[0], str):
        raise BadRequest("prompt_name: a prompt goes before text, and input holds token ids", param="prompt_name")
    return request
