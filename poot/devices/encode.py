"""An encode pass as a device sees it: whole texts laid end to end, one vector out for each.

Beside `base.py`'s steps, which generate. A pass keeps nothing: no KV pool, no sampling. No padding exists: texts of any
length lie one after the other, and attention looks only within each (packed variable-length attention).

Shapes: `num_tokens` is all tokens of a pass over all its texts, `num_texts` its texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch

from poot.devices.base import FloatArray, IntArray, LongArray, Ops


class Pooling(Enum):
    """How the final hidden states of a text become one vector."""

    MEAN = "mean"
    CLS = "cls"
    LAST = "last"


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeStep:
    """Every value that changes from pass to pass.

    Attributes:
        token_ids: int64 `[num_tokens]`.
        positions: int64 `[num_tokens]`, from 0 in each text; a model adds its own offset.
        token_types: int64 `[num_tokens]`, 0 where a model has none.
        text_starts: int32 `[num_texts + 1]`: text t owns tokens `text_starts[t]` to `text_starts[t + 1]`, at least one.
        pooling: one for each text.
        pool_starts: int32 `[num_texts]`: first token, counted from the text's own first, that a mean takes in (past an
            instruction that is not part of the text); 0 as a rule.
    """

    token_ids: LongArray
    positions: LongArray
    token_types: LongArray
    text_starts: IntArray
    pooling: tuple[Pooling, ...]
    pool_starts: IntArray

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_texts(self) -> int:
        return len(self.pooling)


@dataclass(frozen=True, slots=True)
class EncodeTensors:
    """What model code sees of a pass: device tensors `[num_tokens]`. Where texts begin, `Ops` knows."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    token_types: torch.Tensor


# The engine's model code: f32 `[num_texts, features]` of one pass: pooled vectors, or a classifier's logits.
EncodeForward = Callable[[Ops, EncodeTensors], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeBucket:
    """The largest pass a program is recorded for. `max_text_tokens` is the longest single text."""

    num_texts: int
    num_tokens: int
    max_text_tokens: int


class EncodePending(Protocol):
    """A pass in flight on the device."""

    def vectors(self) -> FloatArray:
        """Waits for the pass: f32 `[num_texts, features]`, the caller's own. Blocks the calling thread."""


class EncodeProgram(Protocol):
    """One recorded bucket."""

    def launch(self, step: EncodeStep) -> EncodePending:
        """Fills the step buffer and starts the pass. Never allocates device memory."""
