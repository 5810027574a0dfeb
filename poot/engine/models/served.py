"""Loads whatever a checkpoint is: one function from a file to a model that generates, embeds or reranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from poot.devices.base import Device, Linear, Ops
from poot.devices.encode import EncodeForward, EncodeTensors
from poot.engine.checkpoint.fields import ConfigReader
from poot.engine.checkpoint.mapped_file import display_path
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.encoding import TextEncoder
from poot.engine.models.causal import as_causal, is_decoder
from poot.engine.models.decoder import DecoderModel
from poot.engine.models.encoder import EncoderModel
from poot.engine.models.encoder_loading import load_encoder
from poot.engine.models.encoder_registry import is_encoder
from poot.engine.models.loading import Progress, load_model
from poot.engine.models.profile import read_max_tokens, read_profile
from poot.engine.models.registry import read_spec
from poot.engine.models.reranker import read_pair_writer, read_score_row
from poot.engine.models.sentence_head import HeadForward, load_sentence_head
from poot.engine.models.task import Task, read_task
from poot.engine.text.text_encoder import ModelTextEncoder
from poot.engine.text.tokenizer import Tokenizer
from poot.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A loaded model and everything the plan needs to know of it.

    Attributes:
        task: what it is for. A model that generates also embeds.
        decoder: present where it generates.
        encode_forward: one encode pass: pooled vectors f32 `[num_texts, dim]`, or logits `[num_texts, 1]`.
        spec_sizes: for `Device.encode_bytes` and `Device.step_bytes`.
        dim: features of a vector; 1 for a reranker.
        model_limit: most tokens of a text or positions of a sequence, by the model's own limits.
        vocab_size: ids below it are the model's.
        num_weight_bytes: device memory its weights and tables hold.
        display_name: the name the file gives it, or None.
        make_text_encoder: `text_encoder` without its checks.
    """

    task: Task
    decoder: DecoderModel | None
    encode_forward: EncodeForward
    spec_sizes: Mapping[str, int]
    dim: int
    model_limit: int
    vocab_size: int
    num_weight_bytes: int
    display_name: str | None
    make_text_encoder: Callable[[int], TextEncoder]

    def text_encoder(self, max_tokens: int) -> TextEncoder:
        """The model's text side, once the plan has settled how many tokens a text may have."""
        assert 0 < max_tokens <= self.model_limit, (max_tokens, self.model_limit)
        return self.make_text_encoder(max_tokens)


def load_served(
    checkpoint: Checkpoint,
    device: Device,
    *,
    tokenizer: Tokenizer,
    max_seq: int,
    progress: Progress | None = None,
) -> ServedModel:
    """The model of `checkpoint`, prepared on `device`.

    Args:
        tokenizer: the checkpoint's own.
        max_seq: positions that will be served at most (--max-seq).
        progress: called with (done_bytes, total_bytes) of the file's tensors as they are prepared.

    Raises:
        CheckpointError: an architecture, module, pooling, config field or tensor that is wrong or not served.
        NotAvailableError: a model that needs a feature that is not built yet.
    """
    task = read_task(checkpoint)
    text_side = _TextSide(checkpoint, tokenizer, task)
    if is_decoder(checkpoint):
        return _load_decoder(checkpoint, device, text_side, max_seq=max_seq, progress=progress)
    if is_encoder(checkpoint):
        return _load_encoder(checkpoint, device, text_side, max_seq=max_seq, progress=progress)
    read_spec(checkpoint)  # refuses an architecture that nobody serves, saying which are
    raise AssertionError(checkpoint.architecture)


class _TextSide:
    """Everything of the text side that is read, and refused, at loading; `make` finishes it."""

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer, task: Task) -> None:
        self.task = task
        self.tokenizer = tokenizer
        self._checkpoint = checkpoint
        reader = ConfigReader(checkpoint.tokenizer_config, where=f"{display_path(checkpoint.path)}/tokenizer_config")
        side = reader.optional_str("truncation_side", "right", choices=("left", "right"))
        self._cuts_left = side == "left"
        self._pair_writer = (
            read_pair_writer(checkpoint, tokenizer, cuts_left=self._cuts_left) if task is Task.RERANK else None
        )
        pooling = None if checkpoint.sentence is None else checkpoint.sentence.pooling
        self._leaves_out_prompt = pooling is not None and not pooling.include_prompt

    def maker(self, dim: int, model_limit: int) -> Callable[[int], TextEncoder]:
        """What makes the text encoder of a model with vectors of `dim` features."""
        # Read once here, so that a setting that is not served stops loading.
        read_profile(self._checkpoint, self.task, dim=dim, max_tokens=model_limit)

        def make(max_tokens: int) -> TextEncoder:
            return ModelTextEncoder(
                self.tokenizer,
                read_profile(self._checkpoint, self.task, dim=dim, max_tokens=max_tokens),
                pair_writer=self._pair_writer,
                leaves_out_prompt=self._leaves_out_prompt,
                cuts_left=self._cuts_left,
            )

        return make


def _load_decoder(
    checkpoint: Checkpoint, device: Device, text_side: _TextSide, *, max_seq: int, progress: Progress | None
) -> ServedModel:
    task = text_side.task
    bytes_before = device.weight_bytes()
    generates = task is Task.GENERATE
    plain = as_causal(checkpoint, keeps_head=generates)
    model = load_model(plain, device, max_positions=max_seq, for_texts=not generates, progress=progress)
    spec = model.spec
    if task is Task.RERANK:
        row, bias = read_score_row(checkpoint, text_side.tokenizer)
        if row.shape != (1, spec.hidden_size):
            raise CheckpointError(
                f"tensor {row.name} has shape {list(row.shape)}, not {[1, spec.hidden_size]}",
                path=display_path(checkpoint.path),
            )
        score = device.linear([row], [None if bias is None else device.vector(bias)])
        forward, dim = _scored(model, score), 1
    else:
        head, dim = load_sentence_head(checkpoint, device, spec.hidden_size)
        forward = _pooled(model, head)
    limit = spec.max_positions if generates else read_max_tokens(checkpoint, spec.max_positions)
    return ServedModel(
        task=task,
        decoder=model if generates else None,
        encode_forward=forward,
        spec_sizes=decoder_sizes(model),
        dim=dim,
        model_limit=limit,
        vocab_size=spec.vocab_size,
        num_weight_bytes=device.weight_bytes() - bytes_before,
        display_name=model.display_name,
        make_text_encoder=text_side.maker(dim, limit),
    )


def _load_encoder(
    checkpoint: Checkpoint, device: Device, text_side: _TextSide, *, max_seq: int, progress: Progress | None
) -> ServedModel:
    bytes_before = device.weight_bytes()
    model = load_encoder(checkpoint, device, max_tokens=max_seq, progress=progress)
    spec = model.spec
    if text_side.task is Task.RERANK:
        if not model.has_classifier:
            raise CheckpointError("is a reranker without a classifier", path=display_path(checkpoint.path))
        forward, dim = _classified(model), 1
    else:
        head, dim = load_sentence_head(checkpoint, device, spec.hidden_size)
        forward = _embedded(model, head)
    limit = read_max_tokens(checkpoint, spec.max_positions)
    return ServedModel(
        task=text_side.task,
        decoder=None,
        encode_forward=forward,
        spec_sizes={
            "hidden_size": spec.hidden_size,
            "intermediate_size": spec.intermediate_size,
            "vocab_size": spec.vocab_size,
            "max_positions": spec.max_positions,
            "num_heads": spec.num_heads,
            "num_kv_heads": spec.num_heads,
            "head_dim": spec.head_dim,
        },
        dim=dim,
        model_limit=limit,
        vocab_size=spec.vocab_size,
        num_weight_bytes=device.weight_bytes() - bytes_before,
        display_name=model.display_name,
        make_text_encoder=text_side.maker(dim, limit),
    )


def decoder_sizes(model: DecoderModel) -> dict[str, int]:
    """The sizes that a device bounds a decoder's working memory from."""
    spec = model.spec
    return {
        "hidden_size": spec.hidden_size,
        "intermediate_size": max(layer.intermediate_size for layer in spec.layers),
        "vocab_size": spec.vocab_size,
        "max_positions": spec.max_positions,
        "num_heads": max(layer.num_heads for layer in spec.layers),
        "num_kv_heads": max(layer.num_kv_heads for layer in spec.layers),
        "head_dim": max(layer.head_dim for layer in spec.layers),
    }


def _pooled(model: DecoderModel, head: HeadForward) -> EncodeForward:
    def forward(ops: Ops, tensors: EncodeTensors) -> torch.Tensor:
        return head(ops, ops.pool(model.encode(ops, tensors)))

    return forward


def _scored(model: DecoderModel, score: Linear) -> EncodeForward:
    def forward(ops: Ops, tensors: EncodeTensors) -> torch.Tensor:
        return ops.linear(score, ops.pool(model.encode(ops, tensors)))

    return forward


def _embedded(model: EncoderModel, head: HeadForward) -> EncodeForward:
    def forward(ops: Ops, tensors: EncodeTensors) -> torch.Tensor:
        return head(ops, ops.pool(model.encode(ops, tensors)))

    return forward


def _classified(model: EncoderModel) -> EncodeForward:
    def forward(ops: Ops, tensors: EncodeTensors) -> torch.Tensor:
        return model.classify(ops, ops.pool(model.encode(ops, tensors)))

    return forward
