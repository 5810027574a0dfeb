"""Every encoder family against transformers in f32: hidden states and logits of small random checkpoints.

Texts of several lengths stand in one pass here and go one by one through the reference, so that nothing of one text may
reach another. From the yardstick device, from the cpu device, from safetensors and from GGUF.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from poot.devices.base import Device
from poot.devices.encode import EncodeBucket, EncodeForward, EncodeStep, Pooling
from poot.devices.torch_device import CpuDevice
from poot.engine.checkpoint import open_checkpoint
from poot.engine.models.encoder_loading import distance_buckets, load_encoder
from poot.engine.models.encoder_spec import DistanceBiasSpec
from poot.errors import CheckpointError
from tests.engine.models.sentence_models import randomized
from tests.fakes.reference_device import ReferenceDevice

TOLERANCE = 1e-5
WIDTH = 32
VOCAB_SIZE = 90
# Longer than ModernBERT's window and than the distances MPNet tells apart, and shorter than both.
LENGTHS = (1, 40, 7, 7, 150, 3)
LONGEST = 160

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": LONGEST,
}
DISTIL = {
    "vocab_size": VOCAB_SIZE,
    "dim": WIDTH,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": LONGEST,
}


@dataclass(frozen=True)
class Case:
    """One small model: transformers' classes begin with `prefix`."""

    prefix: str
    arguments: dict[str, Any] = field(default_factory=lambda: dict(COMMON))
    has_types: bool = False


CASES = {
    "bert": Case("Bert", has_types=True),
    "bert-eps": Case("Bert", {**COMMON, "layer_norm_eps": 1e-2, "hidden_act": "gelu_new"}, has_types=True),
    "roberta": Case("Roberta", {**COMMON, "max_position_embeddings": LONGEST + 6, "pad_token_id": 5}),
    "xlm-roberta": Case("XLMRoberta", {**COMMON, "max_position_embeddings": LONGEST + 2, "type_vocab_size": 1}),
    "distilbert": Case("DistilBert", DISTIL),
    "mpnet": Case("MPNet", {**COMMON, "max_position_embeddings": LONGEST + 2}),
    "nomic-bert": Case("NomicBert", has_types=True),
    "modernbert": Case("ModernBert", {**COMMON, "local_attention": 16, "pad_token_id": 0}),
    "modernbert-biased": Case(
        "ModernBert",
        {
            **COMMON,
            "local_attention": 8,
            "pad_token_id": 0,
            "attention_bias": True,
            "mlp_bias": True,
            "norm_bias": True,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "classifier_pooling": "mean",
            "classifier_bias": True,
        },
    ),
}


def make(case: Case, kind: str) -> Any:
    config = getattr(transformers, f"{case.prefix}Config")(**case.arguments, num_labels=1)
    return randomized(getattr(transformers, f"{case.prefix}{kind}")(config))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Any, Path]]:
    """A model of a case and kind, with the directory it is saved in."""
    made: dict[tuple[str, str], tuple[Any, Path]] = {}

    def get(name: str, kind: str) -> tuple[Any, Path]:
        if (name, kind) not in made:
            model = make(CASES[name], kind)
            folder = tmp_path_factory.mktemp(name)
            model.save_pretrained(folder)
            made[name, kind] = model, folder
        return made[name, kind]

    return get


def draw_texts(case: Case) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Token ids (none of them padding) and token types of each text."""
    generator = torch.Generator().manual_seed(3)
    texts = []
    for length in LENGTHS:
        ids = torch.randint(6, VOCAB_SIZE, (length,), generator=generator)
        types = torch.randint(0, 2, (length,), generator=generator) if case.has_types else torch.zeros_like(ids)
        texts.append((ids, types))
    return texts


def step_of(texts: list[tuple[torch.Tensor, torch.Tensor]], pooling: Pooling) -> EncodeStep:
    lengths = [len(ids) for ids, _ in texts]
    return EncodeStep(
        token_ids=torch.cat([ids for ids, _ in texts]).numpy(),
        positions=np.concatenate([np.arange(length) for length in lengths]),
        token_types=torch.cat([types for _, types in texts]).numpy(),
        text_starts=np.cumsum([0, *lengths]).astype(np.int32),
        pooling=(pooling,) * len(texts),
        pool_starts=np.zeros(len(texts), np.int32),
    )


def run(device: Device, forward: EncodeForward, step: EncodeStep) -> torch.Tensor:
    bucket = EncodeBucket(num_texts=step.num_texts, num_tokens=step.num_tokens, max_text_tokens=LONGEST)
    return torch.from_numpy(device.record_encode(forward, bucket).launch(step).vectors())


def expected_means(model: Any, case: Case, texts: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.stack(
            [
                model(input_ids=ids[None], **({"token_type_ids": types[None]} if case.has_types else {}))
                .last_hidden_state[0]
                .mean(0)
                for ids, types in texts
            ]
        )


def our_means(device: Device, path: Path, step: EncodeStep) -> torch.Tensor:
    model = load_encoder(open_checkpoint(path), device, max_tokens=LONGEST)
    return run(device, lambda ops, tensors: ops.pool(model.encode(ops, tensors)), step)


@pytest.mark.parametrize("make_device", [ReferenceDevice, lambda: CpuDevice(threads=1)], ids=["reference", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_hidden_states_are_those_of_transformers(
    saved: Callable[[str, str], tuple[Any, Path]], name: str, make_device: Callable[[], Device]
) -> None:
    case = CASES[name]
    model, folder = saved(name, "Model")
    texts = draw_texts(case)
    ours = our_means(make_device(), folder, step_of(texts, Pooling.MEAN))
    torch.testing.assert_close(ours, expected_means(model, case, texts), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(saved: Callable[[str, str], tuple[Any, Path]], name: str) -> None:
    case = CASES[name]
    model, folder = saved(name, "ForSequenceClassification")
    texts = draw_texts(case)
    with torch.inference_mode():
        expected = torch.cat(
            [
                model(input_ids=ids[None], **({"token_type_ids": types[None]} if case.has_types else {})).logits
                for ids, types in texts
            ]
        )
    device = CpuDevice(threads=1)
    encoder = load_encoder(open_checkpoint(folder), device, max_tokens=LONGEST)
    pooling = Pooling(case.arguments.get("classifier_pooling", "cls"))
    step = step_of(texts, pooling)
    ours = run(device, lambda ops, tensors: encoder.classify(ops, ops.pool(encoder.encode(ops, tensors))), step)
    torch.testing.assert_close(ours, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "mpnet", "nomic-bert", "modernbert"])
def test_a_masked_language_model_embeds_as_its_encoder_does(
    saved: Callable[[str, str], tuple[Any, Path]], name: str
) -> None:
    case = CASES[name]
    model, folder = saved(name, "ForMaskedLM")
    texts = draw_texts(case)
    ours = our_means(CpuDevice(threads=1), folder, step_of(texts, Pooling.MEAN))
    torch.testing.assert_close(ours, expected_means(model.base_model, case, texts), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_a_text_has_the_same_vector_alone_and_in_any_order(
    saved: Callable[[str, str], tuple[Any, Path]], name: str
) -> None:
    case = CASES[name]
    _, folder = saved(name, "Model")
    texts = draw_texts(case)
    device = CpuDevice(threads=1)
    together = our_means(device, folder, step_of(texts, Pooling.MEAN))
    backwards = our_means(device, folder, step_of(texts[::-1], Pooling.MEAN)).flip(0)
    torch.testing.assert_close(backwards, together, atol=TOLERANCE, rtol=0)
    for text, vector in zip(texts, together, strict=True):
        alone = our_means(device, folder, step_of([text], Pooling.MEAN))[0]
        torch.testing.assert_close(alone, vector, atol=TOLERANCE, rtol=0)


# GGUF


def write_gguf(path: Path, arch: str, metadata: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    """A file as llama.cpp's converter lays it out; `metadata` without the architecture's prefix."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(f"{arch}.{key}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"{arch}.{key}", value)
        else:
            writer.add_float32(f"{arch}.{key}", value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def renamed(model: Any, arch: gguf.MODEL_ARCH) -> dict[str, torch.Tensor]:
    """The tensors that gguf-py has a name for, under it."""
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    found = {}
    for name, tensor in model.state_dict().items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if stored is not None and "pooler" not in name and "position_ids" not in name:
            found[stored] = tensor
    return found


METADATA: dict[str, Any] = {
    "block_count": 3,
    "context_length": LONGEST,
    "embedding_length": WIDTH,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.layer_norm_epsilon": 1e-12,
    "attention.causal": False,
    "pooling_type": 1,
}


def check_gguf(path: Path, model: Any, case: Case) -> None:
    texts = draw_texts(case)
    ours = our_means(CpuDevice(threads=1), path, step_of(texts, Pooling.MEAN))
    torch.testing.assert_close(ours, expected_means(model, case, texts), atol=TOLERANCE, rtol=0)


def test_a_bert_file_is_the_model_it_was_made_from(
    saved: Callable[[str, str], tuple[Any, Path]], tmp_path: Path
) -> None:
    model, _ = saved("bert", "Model")
    path = write_gguf(tmp_path / "bert.gguf", "bert", METADATA, renamed(model, gguf.MODEL_ARCH.BERT))
    check_gguf(path, model, CASES["bert"])


def test_a_roberta_file_begins_at_its_first_position(
    saved: Callable[[str, str], tuple[Any, Path]], tmp_path: Path
) -> None:
    model, _ = saved("roberta", "Model")
    tensors = renamed(model, gguf.MODEL_ARCH.BERT)
    tensors["position_embd.weight"] = tensors["position_embd.weight"][6:].contiguous()  # as the converter cuts it
    path = write_gguf(tmp_path / "roberta.gguf", "bert", METADATA, tensors)
    check_gguf(path, model, CASES["roberta"])


def test_a_nomic_bert_file_is_the_model_it_was_made_from(
    saved: Callable[[str, str], tuple[Any, Path]], tmp_path: Path
) -> None:
    model, _ = saved("nomic-bert", "Model")
    state = model.state_dict()
    tensors = {
        "token_embd.weight": state["embeddings.word_embeddings.weight"],
        "token_types.weight": state["embeddings.token_type_embeddings.weight"],
        "token_embd_norm.weight": state["embeddings.LayerNorm.weight"],
        "token_embd_norm.bias": state["embeddings.LayerNorm.bias"],
    }
    for index in range(3):
        block, stored = f"layers.{index}", f"blk.{index}"
        tensors[f"{stored}.attn_qkv.weight"] = torch.cat(
            [state[f"{block}.self_attn.{part}_proj.weight"] for part in "qkv"]
        )
        tensors[f"{stored}.attn_output.weight"] = state[f"{block}.self_attn.o_proj.weight"]
        for part in ("gate", "up", "down"):
            tensors[f"{stored}.ffn_{part}.weight"] = state[f"{block}.mlp.{part}_proj.weight"]
        for theirs, ours in (
            ("post_attention_layernorm", "attn_output_norm"),
            ("post_mlp_layernorm", "layer_output_norm"),
        ):
            for kind in ("weight", "bias"):
                tensors[f"{stored}.{ours}.{kind}"] = state[f"{block}.{theirs}.{kind}"]
    metadata = {**METADATA, "rope.freq_base": 1000.0}
    check_gguf(write_gguf(tmp_path / "nomic.gguf", "nomic-bert", metadata, tensors), model, CASES["nomic-bert"])


def test_a_modernbert_file_is_the_model_it_was_made_from(
    saved: Callable[[str, str], tuple[Any, Path]], tmp_path: Path
) -> None:
    model, _ = saved("modernbert", "Model")
    metadata = {
        **METADATA,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.sliding_window": 16,
        "attention.sliding_window_pattern": 3,
        "rope.freq_base": 160000.0,
        "rope.freq_base_swa": 10000.0,
    }
    path = write_gguf(tmp_path / "modern.gguf", "modern-bert", metadata, renamed(model, gguf.MODEL_ARCH.MODERN_BERT))
    check_gguf(path, model, CASES["modernbert"])


# Parts, and refusals


def test_distances_fall_into_the_buckets_of_transformers() -> None:
    distances = torch.arange(-128, 129)
    bucket = transformers.models.mpnet.modeling_mpnet.MPNetEncoder.relative_position_bucket
    expected = bucket(distances, num_buckets=32, max_distance=128).tolist()
    assert distance_buckets(DistanceBiasSpec(num_buckets=32, max_distance=128)) == expected


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"hidden_act": "quick_gelu"}, "hidden_act"),
        ("bert", {"hidden_size": 30}, "hidden_size"),
        ("bert", {"intermediate_size": 49}, "shape"),
        ("modernbert", {"layer_types": ["full_attention"]}, "layer_types"),
        ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    saved: Callable[[str, str], tuple[Any, Path]], name: str, change: dict[str, Any], message: str
) -> None:
    _, folder = saved(name, "Model")
    checkpoint = open_checkpoint(folder)
    checkpoint.config.update(change)  # type: ignore[attr-defined]  # a dict behind its Mapping
    with pytest.raises(CheckpointError, match=message):
        load_encoder(checkpoint, ReferenceDevice(), max_tokens=LONGEST)


def test_a_tensor_that_nothing_reads_is_refused(saved: Callable[[str, str], tuple[Any, Path]]) -> None:
    _, folder = saved("bert", "Model")
    checkpoint = open_checkpoint(folder)
    extra = checkpoint.tensors["embeddings.LayerNorm.bias"]
    checkpoint.tensors["encoder.adapter.weight"] = extra  # type: ignore[index]  # a dict behind its Mapping
    with pytest.raises(CheckpointError, match=r"encoder\.adapter\.weight"):
        load_encoder(checkpoint, ReferenceDevice(), max_tokens=LONGEST)
