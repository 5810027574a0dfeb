"""Changes to a row's logits before anything is drawn from them: logit bias, then penalties.

Sparse: a row names only the tokens that change, so the cost goes with the tokens it holds and not with the vocabulary,
and a row without any pays nothing. In this order, on logits `l`:

    bias          l += bias, for the ids of the request's logit_bias
    repetition    l = l / r where l > 0, else l * r, for every id of the prompt and the generated text
                  (CTRL, Keskar et al. 2019, section 4.1; for negative logits as transformers does)
    frequency     l -= f * count, for every generated id, `count` being how often it was generated
    presence      l -= p, for every generated id                              (OpenAI's API reference, "Penalties")
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True, slots=True)
class LogitEdits:
    """One row's changes. Ids are within the vocabulary, and each occurs once in its array.

    Attributes:
        bias_ids: int64 `[num_biased]`.
        bias: f32 `[num_biased]`.
        token_ids: int64 `[num_held]`: the ids of prompt and generated text; empty where no penalty is asked for.
        counts: f32 `[num_held]`: how often each was generated; 0 for those of the prompt alone.
        presence: 0 is off.
        frequency: 0 is off.
        repetition: 1 is off.
    """

    bias_ids: npt.NDArray[np.int64]
    bias: npt.NDArray[np.float32]
    token_ids: npt.NDArray[np.int64]
    counts: npt.NDArray[np.float32]
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0


def apply_edits(logits: npt.NDArray[np.float32], edits: LogitEdits) -> None:
    """Changes one row's `logits`, f32 `[vocab_size]`, in place."""
    if len(edits.bias_ids):
        logits[edits.bias_ids] += edits.bias
    if not len(edits.token_ids):
        return
    held = logits[edits.token_ids]
    if edits.repetition != 1:
        repetition = np.float32(edits.repetition)
        with np.errstate(over="ignore"):  # a penalty near 0 sends a positive logit far up; the row then fails by name
            held = np.where(held > 0, held / repetition, held * repetition)
    held -= np.float32(edits.frequency) * edits.counts
    held -= np.float32(edits.presence) * (edits.counts > 0)
    logits[edits.token_ids] = held
