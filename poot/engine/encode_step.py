"""The texts of a pass turned into the arrays a device program reads. Numpy only; nothing here waits or decides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from poot.devices.base import IntArray, LongArray
from poot.devices.encode import EncodeBucket, EncodeStep, Pooling
from poot.engine.encode_queue import PassText


def build_encode_step(composed: Sequence[PassText]) -> EncodeStep:
    """The step buffer's values for a pass of at least one text."""
    texts = [taken.text for taken in composed]
    lengths = np.fromiter((text.num_tokens for text in texts), np.int32, len(texts))
    token_types = np.zeros(int(lengths.sum()), np.int64)
    starts = _starts(lengths)
    for text, start in zip(texts, starts[:-1].tolist(), strict=True):
        if text.token_types is not None:
            token_types[start : start + text.num_tokens] = text.token_types
    return EncodeStep(
        token_ids=np.concatenate([text.token_ids for text in texts]),
        positions=_positions(starts),
        token_types=token_types,
        text_starts=starts,
        pooling=tuple(taken.request.pooling for taken in composed),
        pool_starts=np.fromiter((text.pool_start for text in texts), np.int32, len(texts)),
    )


def rehearsal_pass(bucket: EncodeBucket) -> EncodeStep:
    """The largest pass a plan admits: one text as long as texts may be, and others that fill the budget.

    Run once before serving, it touches every buffer the plan counted.
    """
    lengths = [min(bucket.max_text_tokens, bucket.num_tokens)]
    num_others = min(bucket.num_texts - 1, bucket.num_tokens - lengths[0])
    if num_others:
        lengths += [(bucket.num_tokens - lengths[0]) // num_others] * num_others
    starts = _starts(np.array(lengths, np.int32))
    num_tokens = int(starts[-1])
    return EncodeStep(
        token_ids=np.zeros(num_tokens, np.int64),
        positions=_positions(starts),
        token_types=np.zeros(num_tokens, np.int64),
        text_starts=starts,
        pooling=(Pooling.MEAN,) * len(lengths),
        pool_starts=np.zeros(len(lengths), np.int32),
    )


def _starts(lengths: IntArray) -> IntArray:
    starts = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _positions(starts: IntArray) -> LongArray:
    """0, 1, 2 ... within each text."""
    return np.arange(starts[-1], dtype=np.int64) - np.repeat(starts[:-1], np.diff(starts))
