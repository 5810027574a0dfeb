"""What sentence-transformers puts behind pooling: Dense modules, and a cut to a shorter length, on the device.

Normalize is not here: vectors leave the device as they are, and the API normalizes them unless a request says not to.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from poot.devices.base import Activation, Device, Linear, Ops
from poot.engine.checkpoint.mapped_file import display_path
from poot.engine.checkpoint.sentence_modules import DenseActivation, DenseModule
from poot.engine.checkpoint.types import Checkpoint
from poot.errors import CheckpointError

# Pooled vectors f32 `[num_texts, features]` to embeddings f32 `[num_texts, dim]`.
HeadForward = Callable[[Ops, torch.Tensor], torch.Tensor]

_ACTIVATIONS = {
    DenseActivation.IDENTITY: None,
    DenseActivation.TANH: Activation.TANH,
    DenseActivation.RELU: Activation.RELU,
    DenseActivation.GELU: Activation.GELU,
    DenseActivation.SILU: Activation.SILU,
}


def load_sentence_head(checkpoint: Checkpoint, device: Device, features: int) -> tuple[HeadForward, int]:
    """The head of `checkpoint`, prepared on `device`, and the dimension of what it gives.

    Args:
        features: of the model's hidden states.

    Raises:
        CheckpointError: a module that expects vectors of another length.
    """
    sentence = checkpoint.sentence
    if sentence is None:
        return _unchanged, features
    where = display_path(checkpoint.path)
    if sentence.pooling is not None and sentence.pooling.features not in (None, features):
        raise CheckpointError(
            f"Pooling expects vectors of {sentence.pooling.features}, the model has {features}", path=where
        )
    steps: list[tuple[Linear, Activation | None]] = []
    for dense in sentence.dense:
        if dense.in_features != features:
            raise CheckpointError(f"a Dense module expects vectors of {dense.in_features}, not {features}", path=where)
        steps.append((_load_dense(dense, device), _ACTIVATIONS[dense.activation]))
        features = dense.out_features
    cut = sentence.truncate_dim
    if cut is not None and cut > features:
        raise CheckpointError(f"truncate_dim is {cut}, but vectors have {features}", path=where)

    def forward(ops: Ops, x: torch.Tensor) -> torch.Tensor:
        for linear, kind in steps:
            x = ops.linear(linear, x)
            if kind is not None:
                x = ops.activate(x, kind)
        return x if cut is None else x[:, :cut]

    return forward, features if cut is None else cut


def _unchanged(ops: Ops, x: torch.Tensor) -> torch.Tensor:
    return x


def _load_dense(dense: DenseModule, device: Device) -> Linear:
    return device.linear([dense.weight], [None if dense.bias is None else device.vector(dense.bias)])
