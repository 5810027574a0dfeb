"""Every tensor is checked before it is used, and none is left unread."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from poot.devices.base import Weight
from poot.devices.formats import Format
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models import load_model
from poot.errors import CheckpointError
from tests.engine.models.checkpoints import (
    GGUF_SHAPES,
    HIDDEN,
    HUB_SHAPES,
    KV_HEADS,
    VOCAB,
    gguf_checkpoint,
    hub_checkpoint,
    weight,
)
from tests.fakes.reference_device import ReferenceDevice


def load(checkpoint: Checkpoint) -> None:
    load_model(checkpoint, ReferenceDevice(), max_positions=32)


def refusal(checkpoint: Checkpoint) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint)
    return str(caught.value)


@pytest.mark.parametrize("name", [*HUB_SHAPES])
def test_each_missing_safetensors_tensor_is_named(name: str) -> None:
    message = refusal(hub_checkpoint(shapes={name: None}))
    assert f"tensor {name} is missing" in message
    assert message.startswith("tiny: ")


@pytest.mark.parametrize("name", [name for name in GGUF_SHAPES if name not in ("output.weight", "token_embd.weight")])
def test_each_missing_gguf_tensor_is_named(name: str) -> None:
    assert f"tensor {name} is missing" in refusal(gguf_checkpoint(shapes={name: None}))


@pytest.mark.parametrize("name", [*HUB_SHAPES])
def test_each_tensor_of_a_wrong_shape_is_named(name: str) -> None:
    shape = HUB_SHAPES[name]
    message = refusal(hub_checkpoint(shapes={name: (*shape[:-1], shape[-1] + 1)}))
    assert name in message
    assert str(list(shape)) in message


def test_a_transposed_tensor_is_refused() -> None:
    name = "blk.1.ffn_down.weight"
    assert name in refusal(gguf_checkpoint(shapes={name: tuple(reversed(GGUF_SHAPES[name]))}))


def test_tensors_that_nothing_reads_are_refused() -> None:
    message = refusal(hub_checkpoint(shapes={"model.layers.0.self_attn.q_norm.weight": (4,), "z.weight": (1,)}))
    assert "tensor model.layers.0.self_attn.q_norm.weight and 1 more" in message
    assert "blk.2.attn_q.weight" in refusal(gguf_checkpoint(shapes={"blk.2.attn_q.weight": (HIDDEN, HIDDEN)}))


def test_biases_the_config_does_not_know_are_refused() -> None:
    name = "model.layers.1.self_attn.q_proj.bias"
    assert name in refusal(hub_checkpoint(shapes={name: (HIDDEN,)}))


def test_biases_on_some_layers_only_are_refused() -> None:
    width = KV_HEADS * HIDDEN // 4
    shapes = {"blk.0.attn_q.bias": (HIDDEN,), "blk.0.attn_k.bias": (width,), "blk.0.attn_v.bias": (width,)}
    assert "tensor blk.1.attn_q.bias is missing" in refusal(gguf_checkpoint(shapes=shapes))


def test_stored_frequencies_are_harmless() -> None:
    load(hub_checkpoint(shapes={"model.layers.0.self_attn.rotary_emb.inv_freq": (2,)}))
    load(gguf_checkpoint(shapes={"blk.0.attn_rot_embd.weight": (2,)}))


def test_a_tied_model_may_repeat_its_table_and_an_untied_one_needs_a_head() -> None:
    load(hub_checkpoint(config={"tie_word_embeddings": True}))
    load(hub_checkpoint(config={"tie_word_embeddings": True}, shapes={"lm_head.weight": None}))
    assert "lm_head.weight" in refusal(hub_checkpoint(shapes={"lm_head.weight": None}))


def test_gguf_without_a_head_is_tied() -> None:
    model = load_model(gguf_checkpoint(shapes={"output.weight": None}), ReferenceDevice(), max_positions=32)
    assert model.spec.tied_embeddings


def test_packed_norms_are_refused() -> None:
    checkpoint = gguf_checkpoint()
    name = "blk.0.attn_norm.weight"
    packed = weight(name, (HIDDEN,), Format.F32)
    packed = replace(packed, format=Format.Q8_0)
    tensors = {**checkpoint.tensors, name: packed}
    message = refusal(replace(checkpoint, tensors=tensors))
    assert name in message
    assert "Q8_0" in message


def test_progress_ends_at_the_whole_file() -> None:
    checkpoint = hub_checkpoint()
    total = sum(tensor.num_bytes for tensor in checkpoint.tensors.values())
    seen: list[tuple[int, int]] = []
    load_model(checkpoint, ReferenceDevice(), max_positions=32, progress=lambda *step: seen.append(step))
    done = [step[0] for step in seen]
    assert done == sorted(done)
    assert len(set(done)) > 3
    assert {step[1] for step in seen} == {total}
    assert seen[-1] == (total, total)


def test_facts_of_a_loaded_model() -> None:
    device = ReferenceDevice()
    device.vector(weight("held before", (10,)))
    checkpoint = gguf_checkpoint()
    model = load_model(checkpoint, device, max_positions=32)
    assert model.kv_layers == ((KV_HEADS, 4), (KV_HEADS, 4))
    assert model.display_name == "Tiny"
    assert (model.spec.max_positions, model.spec.vocab_size) == (64, VOCAB)
    tables = 2 * 32 * 2 * 4  # cosines and sines of 32 positions, two pairs, f32; shared by both layers
    stored = sum(tensor.num_bytes for tensor in checkpoint.tensors.values())
    assert model.num_weight_bytes == stored + tables


class OffsetNotingDevice(ReferenceDevice):
    """Notes the offset each vector was asked for with."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets: dict[str, float] = {}

    def vector(self, weight: Weight, *, offset: float = 0.0) -> torch.Tensor:
        self.offsets[weight.name] = offset
        return super().vector(weight, offset=offset)


def test_gemmas_norm_weights_and_nothing_else_get_an_offset() -> None:
    norms = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
    shapes = {f"model.layers.{index}.{norm}.weight": (HIDDEN,) for index in range(2) for norm in norms}
    config = {"head_dim": 4, "sliding_window": 8}
    device = OffsetNotingDevice()
    load_model(hub_checkpoint("Gemma2ForCausalLM", config=config, shapes=shapes), device, max_positions=32)
    assert len([name for name in device.offsets if "norm" in name]) == 9
    assert all(offset == (1.0 if "norm" in name else 0.0) for name, offset in device.offsets.items())
