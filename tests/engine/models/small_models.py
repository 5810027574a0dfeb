"""Small random models of every family, made with transformers, and the same tensors written as GGUF.

Weights are larger than transformers' own initialisation, and norm weights and biases are random, so that a wrong
order, scale, norm or window moves the logits by far more than the tolerance. The GGUF side follows the published
conversion conventions of llama.cpp's conversion scripts: names by gguf-py's tensor map, query and key rows of llama,
smollm3 and granite permuted, one added to Gemma's norm weights, Llama 3.1's rope factors as a tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from safetensors.torch import load_file

VOCAB_SIZE = 307
MAX_POSITIONS = 128

COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 76,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 2.0,
    "original_max_position_embeddings": 16,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 200.0, "factor": 4.0, "original_max_position_embeddings": 24}
MSCALE_YARN_ROPE = {**YARN_ROPE, "mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 8.0, "beta_slow": 2.0}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 3000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.5],
    "long_factor": [2.0, 4.0, 8.0],
}


@dataclass(frozen=True)
class Case:
    """One small model: transformers' configuration class and arguments, and GGUF's architecture if it can say this."""

    name: str
    config_class: str
    arguments: dict[str, Any]
    gguf_arch: str | None = None
    extra_metadata: dict[str, float | int] = field(default_factory=dict)


def _case(name: str, config_class: str, gguf_arch: str | None = None, **arguments: Any) -> Case:
    return Case(name, config_class, {**COMMON, **arguments}, gguf_arch)


CASES = {
    case.name: case
    for case in (
        _case("llama", "LlamaConfig", "LLAMA"),
        _case(
            "llama-biased", "LlamaConfig", "LLAMA", attention_bias=True, mlp_bias=True, head_dim=20, hidden_act="silu"
        ),
        _case("llama-tied", "LlamaConfig", "LLAMA", tie_word_embeddings=True, num_key_value_heads=6),
        _case("llama-llama3", "LlamaConfig", "LLAMA", rope_parameters=LLAMA3_ROPE, head_dim=16),
        _case("llama-linear", "LlamaConfig", "LLAMA", rope_parameters=LINEAR_ROPE),
        _case("llama-yarn", "LlamaConfig", "LLAMA", rope_parameters=YARN_ROPE, head_dim=16),
        _case("llama-mscale", "LlamaConfig", rope_parameters=MSCALE_YARN_ROPE, head_dim=16),
        _case("llama-gelu", "LlamaConfig", hidden_act="gelu_pytorch_tanh"),
        _case("mistral", "MistralConfig", "LLAMA", sliding_window=7),
        _case("mistral-full", "MistralConfig", "LLAMA", sliding_window=None, head_dim=10),
        _case("qwen2", "Qwen2Config", "QWEN2", tie_word_embeddings=True),
        _case("qwen2-windows", "Qwen2Config", use_sliding_window=True, sliding_window=6, max_window_layers=1),
        _case("qwen2-yarn", "Qwen2Config", "QWEN2", rope_parameters=YARN_ROPE),
        _case("qwen3", "Qwen3Config", "QWEN3", head_dim=16),
        _case("smollm3", "SmolLM3Config", "SMOLLM3", num_hidden_layers=5),
        _case(
            "smollm3-layers",
            "SmolLM3Config",
            no_rope_layers=[0, 1, 0],
            use_sliding_window=True,
            sliding_window=5,
            attention_bias=True,
        ),
        _case(
            "gemma2",
            "Gemma2Config",
            "GEMMA2",
            head_dim=12,
            query_pre_attn_scalar=12,
            sliding_window=7,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=4.0,
        ),
        _case("gemma2-scalar", "Gemma2Config", head_dim=12, query_pre_attn_scalar=30, sliding_window=9),
        _case(
            "gemma3",
            "Gemma3TextConfig",
            "GEMMA3",
            num_hidden_layers=7,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=6,
            rope_parameters=GEMMA3_ROPE,
        ),
        _case("phi3", "Phi3Config", "PHI3", sliding_window=8, rope_parameters={"rope_theta": 5000.0}),
        _case(
            "phi3-long",
            "Phi3Config",
            "PHI3",
            original_max_position_embeddings=64,
            rope_parameters=LONG_ROPE,
            tie_word_embeddings=True,
        ),
        _case(
            "granite",
            "GraniteConfig",
            "GRANITE",
            attention_multiplier=0.21,
            embedding_multiplier=3.0,
            residual_multiplier=0.6,
            logits_scaling=2.5,
        ),
        _case("olmo2", "Olmo2Config", "OLMO2"),
    )
}


@dataclass(frozen=True)
class SmallModel:
    """A case on disk: transformers' model, its safetensors directory, and its GGUF file if the case has one."""

    case: Case
    reference: Any
    directory: Path
    gguf_file: Path | None
    memo: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)

    def logits(self, ids: list[int]) -> torch.Tensor:
        """The reference logits f32 `[len(ids), vocab_size]`."""
        key = tuple(ids)
        if key not in self.memo:
            with torch.inference_mode():
                self.memo[key] = self.reference(torch.tensor([ids]), use_cache=False).logits[0]
        return self.memo[key]

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """The reference's `count` likeliest tokens after `ids`, each from a pass over the whole text."""
        text = list(ids)
        while len(text) < len(ids) + count:
            text.append(int(self.logits(text)[-1].argmax()))
        return text[len(ids) :]


def make_small_model(case: Case, folder: Path) -> SmallModel:
    """Makes the model of `case` under `folder`."""
    config = getattr(transformers, case.config_class)(**case.arguments)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(sum(case.name.encode()))
    # Gemma's norm weights stand for what is added to one.
    norm_base = 0.0 if case.config_class.startswith("Gemma") else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(norm_base + 0.3 * noise)
            elif parameter.ndim == 1:
                parameter.copy_(0.5 * noise)
            elif "embed" in name:
                parameter.copy_(noise / math.sqrt(8))
            else:
                parameter.copy_(1.3 * noise / math.sqrt(parameter.shape[1]))
    directory = folder / case.name
    model.save_pretrained(directory)
    gguf_file = None
    if case.gguf_arch is not None:
        gguf_file = folder / f"{case.name}.gguf"
        write_gguf(case.gguf_arch, config, load_file(directory / "model.safetensors"), gguf_file)
    return SmallModel(case, model, directory, gguf_file)


def write_gguf(
    arch: str,
    config: Any,
    tensors: dict[str, torch.Tensor],
    path: Path,
    *,
    matrix_type: str = "F32",
) -> None:
    """Writes `tensors` of a model of `config` as GGUF, matrices stored as `matrix_type`."""
    model_arch = getattr(gguf.MODEL_ARCH, arch)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[model_arch])
    writer.add_name(f"small {arch.lower()}")
    _write_metadata(writer, arch, config)
    names = gguf.get_tensor_name_map(model_arch, config.num_hidden_layers)
    for name, tensor in tensors.items():
        values = tensor
        if arch in ("LLAMA", "SMOLLM3", "GRANITE"):
            if ".q_proj." in name:
                values = permuted(values, config.num_attention_heads)
            if ".k_proj." in name:
                values = permuted(values, config.num_key_value_heads)
        if arch.startswith("GEMMA") and name.endswith("norm.weight"):
            values = values + 1
        stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if values.ndim == 2 and matrix_type != "F32":
            kind = gguf.GGMLQuantizationType[matrix_type]
            writer.add_tensor(stored_name, gguf.quants.quantize(values.numpy(), kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored_name, values.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def permuted(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of each head reordered so that rope's pairs (i, i + half) lie beside each other."""
    half = weight.shape[0] // num_heads // 2
    order = [head * 2 * half + part * half + i for head in range(num_heads) for i in range(half) for part in (0, 1)]
    return weight[torch.tensor(order)]


def _write_metadata(writer: Any, arch: str, config: Any) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    if arch not in ("PHI3", "GRANITE", "OLMO2"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if arch in ("LLAMA", "SMOLLM3", "GRANITE"):
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_dim)
    if arch in ("LLAMA", "GEMMA2", "GEMMA3", "PHI3") and getattr(config, "sliding_window", None) is not None:
        writer.add_sliding_window(config.sliding_window)
    if arch == "GEMMA2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch == "GRANITE":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    kind = rope.get("rope_type", "default")
    if arch == "PHI3":
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    if kind == "longrope":
        scale = config.max_position_embeddings / config.original_max_position_embeddings
        factor = math.sqrt(1 + math.log(scale) / math.log(config.original_max_position_embeddings))
        writer.add_rope_scaling_attn_factors(factor)
        for name in ("long", "short"):
            factors = torch.tensor(rope[f"{name}_factor"], dtype=torch.float32)
            writer.add_tensor(f"rope_factors_{name}.weight", factors.numpy())
    elif kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
        if kind == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif kind == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(rope, head_dim).numpy())


def _llama3_factors(rope: dict[str, Any], head_dim: int) -> torch.Tensor:
    """What Llama 3.1's scaling divides each frequency by, by transformers' own arithmetic."""
    config = transformers.LlamaConfig(
        **{**COMMON, "head_dim": head_dim, "rope_parameters": dict(rope), "num_attention_heads": 1}
    )
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, head_dim, 2).float() / head_dim)
    factors: torch.Tensor = plain / scaled
    return factors
