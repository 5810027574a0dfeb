"""One encode pass of model code over the reference operations, without a device's program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from poot.devices.base import Ops
from poot.devices.encode import EncodeForward, EncodeStep, EncodeTensors, Pooling
from poot.engine.encoding import EncodeText
from tests.fakes.reference_device import ReferenceOps


def run_pass(
    forward: EncodeForward,
    texts: Sequence[EncodeText | list[int]],
    pooling: Pooling | Sequence[Pooling],
    wrap: Callable[[Ops], Ops] = lambda ops: ops,
) -> torch.Tensor:
    """What `forward` gives for `texts` in one pass, f32 `[num_texts, features]`; `wrap` may replace its operations."""
    step = encode_step(texts, pooling)
    tensors = EncodeTensors(
        token_ids=torch.from_numpy(step.token_ids),
        positions=torch.from_numpy(step.positions),
        token_types=torch.from_numpy(step.token_types),
    )
    ops = ReferenceOps(None, [], [])
    ops.encode_step = step
    with torch.inference_mode():
        return forward(wrap(ops), tensors)


def encode_step(texts: Sequence[EncodeText | list[int]], pooling: Pooling | Sequence[Pooling]) -> EncodeStep:
    """The pass of `texts`, given as texts or bare token ids, pooled alike or each in its own way."""
    items = [text if isinstance(text, EncodeText) else EncodeText(np.array(text, np.int64)) for text in texts]
    lengths = [item.num_tokens for item in items]
    types = [np.zeros(item.num_tokens, np.int64) if item.token_types is None else item.token_types for item in items]
    return EncodeStep(
        token_ids=np.concatenate([item.token_ids for item in items]),
        positions=np.concatenate([np.arange(length) for length in lengths]),
        token_types=np.concatenate(types),
        text_starts=np.cumsum([0, *lengths]).astype(np.int32),
        pooling=(pooling,) * len(items) if isinstance(pooling, Pooling) else tuple(pooling),
        pool_starts=np.array([item.pool_start for item in items], np.int32),
    )
