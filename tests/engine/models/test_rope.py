"""Frequencies and tables against transformers' own, and against numbers worked out by hand from the papers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from poot.engine.checkpoint.types import Checkpoint, FileFormat
from poot.engine.models import rope
from poot.engine.models.families.hub_config import HubConfig
from poot.engine.models.spec import RopeSpec
from tests.engine.models.small_models import COMMON
from tests.fakes.reference_device import ReferenceDevice

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    # Llama 3.1 8B and Llama 3.2 1B
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    # Qwen 2.5
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 48.0,
        "beta_slow": 2.0,
        "mscale": 0.707,
        "mscale_all_dim": 1.2,
    },
    "yarn-factor": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 4096,
        "attention_factor": 1.5,
        "truncate": False,
    },
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 4096,
        "short_factor": [1.0 + 0.02 * i for i in range(64)],
        "long_factor": [1.0 + 0.5 * i for i in range(64)],
    },
}
GEOMETRY = {"hidden_size": 512, "num_attention_heads": 4, "head_dim": 128, "max_position_embeddings": 131072}


def read(config: dict[str, Any]) -> RopeSpec:
    checkpoint = Checkpoint(
        path=Path("model"),
        file_format=FileFormat.SAFETENSORS,
        architecture="LlamaForCausalLM",
        config=config,
        tensors={},
    )
    return HubConfig(checkpoint, "llama").rope()


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_frequencies_equal_transformers(name: str) -> None:
    parameters = SCALINGS[name]
    config = transformers.LlamaConfig(**{**COMMON, **GEOMETRY, "rope_parameters": dict(parameters)})
    compute = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
    expected, attention_factor = compute(config, torch.device("cpu"))
    spec = read({**COMMON, **GEOMETRY, "rope_parameters": parameters})
    assert spec.rotary_dim == 128
    assert spec.inverse_frequencies == pytest.approx(expected.tolist(), rel=2e-6)
    assert spec.attention_factor == pytest.approx(attention_factor, rel=1e-9)


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("type_key", ["rope_type", "type"])
def test_older_configs_mean_the_same(name: str, type_key: str) -> None:
    parameters = SCALINGS[name]
    old = {key: value for key, value in parameters.items() if key not in ("rope_type", "rope_theta")}
    old_config = {
        **COMMON,
        **GEOMETRY,
        "rope_theta": parameters["rope_theta"],
        "rope_scaling": {**old, type_key: parameters["rope_type"]},
    }
    assert read(json.loads(json.dumps(old_config))) == read({**COMMON, **GEOMETRY, "rope_parameters": parameters})


def test_a_config_without_rope_fields_turns_whole_heads_with_base_10000() -> None:
    spec = read({**COMMON, **GEOMETRY, "rope_scaling": None})
    assert spec.rotary_dim == 128
    assert spec.inverse_frequencies[0] == 1.0
    assert spec.inverse_frequencies[32] == pytest.approx(0.01)


@pytest.mark.parametrize("place", ["top", "parameters"])
def test_partial_rotary_factor_turns_the_first_dimensions(place: str) -> None:
    if place == "top":
        spec = read({**COMMON, **GEOMETRY, "partial_rotary_factor": 0.75})
    else:
        spec = read({**COMMON, **GEOMETRY, "rope_parameters": {"partial_rotary_factor": 0.75}})
    assert spec.rotary_dim == 96
    assert len(spec.inverse_frequencies) == 48


def test_llama3_keeps_short_waves_and_interpolates_long_ones() -> None:
    # Waves of 100, 2000 and 10000 positions against an original context of 8192 (factors 1 and 4): more than 4 turns,
    # 4.096 turns, less than 1 turn. 4000 positions are 2.048 turns, a share of 1.048 / 3 unscaled.
    frequencies = [2 * math.pi / wave for wave in (100, 2000, 4000, 10000)]
    scaled = rope.llama3(
        frequencies, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192
    )
    share = 1.048 / 3
    ratios = [after / before for after, before in zip(scaled, frequencies, strict=True)]
    assert ratios == pytest.approx([1.0, 1.0, (1 - share) / 8 + share, 1 / 8])


def test_yarn_attention_factor_is_the_papers() -> None:
    assert rope.yarn_attention_factor(4.0) == pytest.approx(1.1386294361)  # 0.1 * ln 4 + 1
    assert rope.yarn_attention_factor(1.0) == 1.0
    assert rope.yarn_attention_factor(0.5) == 1.0


def test_table_holds_the_cosines_of_each_position() -> None:
    spec = RopeSpec(inverse_frequencies=(1.0, 0.25), rotary_dim=4, attention_factor=2.0, interleaved=True)
    table = rope.rope_table(ReferenceDevice(), spec, 3)
    assert (table.rotary_dim, table.interleaved) == (4, True)
    assert table.cos.dtype == table.sin.dtype == torch.float32
    assert table.cos.tolist() == [pytest.approx([2 * math.cos(p), 2 * math.cos(p / 4)], rel=1e-6) for p in range(3)]
    assert table.sin.tolist() == [pytest.approx([2 * math.sin(p), 2 * math.sin(p / 4)], rel=1e-6) for p in range(3)]


def test_table_is_exact_far_out() -> None:
    # f32 angles would be off by up to 4e-3 here, which is why tables are computed in float64.
    spec = RopeSpec(inverse_frequencies=(0.7123,), rotary_dim=2)
    table = rope.rope_table(ReferenceDevice(), spec, 99_992)
    assert float(table.cos[99_991, 0]) == pytest.approx(math.cos(99_991 * 0.7123), abs=1e-7)


def test_the_original_context_beside_the_rope_fields_goes_first() -> None:
    parameters = SCALINGS["longrope"]
    nested = read({**COMMON, **GEOMETRY, "rope_parameters": parameters})
    beside = {**COMMON, **GEOMETRY, "original_max_position_embeddings": 4096}
    assert read({**beside, "rope_parameters": {**parameters, "original_max_position_embeddings": 512}}) == nested
    without = {key: value for key, value in parameters.items() if key != "original_max_position_embeddings"}
    assert read({**beside, "rope_parameters": without}) == nested
