"""A model's own sampling defaults, from both kinds of file, against transformers' reading of the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from transformers import GenerationConfig

from poot.engine.checkpoint.types import Checkpoint, FileFormat
from poot.engine.sampling.defaults import SamplingDefaults, read_sampling_defaults
from poot.errors import CheckpointError


def hub(generation_config: dict[str, Any]) -> Checkpoint:
    return Checkpoint(
        path=Path("model"),
        file_format=FileFormat.SAFETENSORS,
        architecture="LlamaForCausalLM",
        config={},
        tensors={},
        generation_config=generation_config,
    )


def gguf_file(config: dict[str, Any]) -> Checkpoint:
    return Checkpoint(
        path=Path("model.gguf"), file_format=FileFormat.GGUF, architecture="llama", config=config, tensors={}
    )


def test_what_the_file_names_counts_and_the_rest_is_openais() -> None:
    # Qwen3-0.6B's file.
    named = {"do_sample": True, "eos_token_id": [1, 2], "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    assert read_sampling_defaults(hub(named)) == SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95)
    assert read_sampling_defaults(hub({})) == SamplingDefaults(temperature=1, top_p=1, top_k=0, min_p=0)
    # Qwen2.5's, without do_sample and with nulls.
    quiet = {"repetition_penalty": 1.05, "temperature": 0.7, "top_p": None, "top_k": -1, "min_p": 0.02}
    assert read_sampling_defaults(hub(quiet)) == SamplingDefaults(temperature=0.7, repetition_penalty=1.05, min_p=0.02)


def test_names_are_those_that_transformers_writes(tmp_path: Path) -> None:
    values: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.25, "repetition_penalty": 1.5}
    GenerationConfig(do_sample=True, **values).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "generation_config.json").read_text())
    assert read_sampling_defaults(hub(written)) == SamplingDefaults(**values)


def test_a_model_that_says_it_does_not_sample_is_greedy() -> None:
    assert read_sampling_defaults(hub({"do_sample": False, "temperature": 0.7, "top_p": 0.9})).temperature == 0


def test_gguf_has_its_own_names() -> None:
    keys = gguf.Keys.General
    config = {
        keys.SAMPLING_TEMP: 0.5,
        keys.SAMPLING_TOP_P: 0.9,
        keys.SAMPLING_TOP_K: 7,
        keys.SAMPLING_MIN_P: 0.25,
        keys.SAMPLING_PENALTY_REPEAT: 1.5,
    }
    assert read_sampling_defaults(gguf_file(config)) == SamplingDefaults(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.25, repetition_penalty=1.5
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 2.5},
        {"temperature": -1},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_k": -2},
        {"top_k": 1.5},
        {"min_p": 2},
        {"repetition_penalty": 0},
        {"repetition_penalty": "1"},
        {"do_sample": "no"},
    ],
)
def test_a_value_no_request_could_ask_for_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(wrong))):
        read_sampling_defaults(hub(wrong))
