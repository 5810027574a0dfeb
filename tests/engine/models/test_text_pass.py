"""Decoders as embedders: pooled hidden states of one encode pass against transformers, for every kind of layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch

from poot.devices.base import Ops
from poot.devices.encode import EncodeBucket, Pooling
from poot.devices.torch_device import CpuDevice
from poot.engine.checkpoint import open_checkpoint
from poot.engine.models.served import ServedModel, load_served
from poot.engine.models.task import Task
from tests.engine.models.encode_pass import encode_step, run_pass
from tests.engine.models.small_models import CASES, VOCAB_SIZE, SmallModel
from tests.engine.models.test_decoder import ForgetfulOps
from tests.engine.text.makers import chat_tokenizer
from tests.fakes.reference_device import ReferenceDevice, ReferenceOps

NAMES = ("llama", "mistral", "qwen2", "qwen3", "smollm3-layers", "gemma2", "gemma3", "phi3", "granite", "olmo2")
TEXTS = [[(37 * index + 11 * length) % (VOCAB_SIZE - 3) + 3 for index in range(length)] for length in (23, 1, 9, 40)]

# Of vectors of length 1.
TOLERANCE = 1e-5


def load(model: SmallModel, *, is_gguf: bool = False) -> ServedModel:
    path = model.gguf_file if is_gguf else model.directory
    assert path is not None
    return load_served(open_checkpoint(path), ReferenceDevice(), tokenizer=chat_tokenizer(), max_seq=64)


def reference(model: SmallModel, ids: list[int], pooling: Pooling) -> torch.Tensor:
    """The pooled final hidden states of transformers, of length 1."""
    with torch.inference_mode():
        hidden = model.reference.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    vector = {Pooling.MEAN: hidden.mean(0), Pooling.CLS: hidden[0], Pooling.LAST: hidden[-1]}[pooling]
    return torch.nn.functional.normalize(vector, dim=-1)


def normalized(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(x, dim=-1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pooling", list(Pooling))
def test_pooled_hidden_states_are_transformers(
    small_model: Callable[[str], SmallModel], name: str, pooling: Pooling
) -> None:
    model = small_model(name)
    served = load(model)
    found = normalized(run_pass(served.encode_forward, TEXTS, pooling))
    expected = torch.stack([reference(model, ids, pooling) for ids in TEXTS])
    assert (found - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].gguf_arch is not None])
def test_a_gguf_embeds_as_its_safetensors(small_model: Callable[[str], SmallModel], name: str) -> None:
    model = small_model(name)
    first, second = (
        normalized(run_pass(load(model, is_gguf=is_gguf).encode_forward, TEXTS, Pooling.LAST))
        for is_gguf in (False, True)
    )
    assert (first - second).abs().max() <= TOLERANCE


def test_a_text_does_not_depend_on_its_neighbours(small_model: Callable[[str], SmallModel]) -> None:
    forward = load(small_model("gemma3")).encode_forward
    together = run_pass(forward, TEXTS, Pooling.MEAN)
    turned = run_pass(forward, TEXTS[::-1], Pooling.MEAN).flip(0)
    alone = torch.cat([run_pass(forward, [ids], Pooling.MEAN) for ids in TEXTS])
    assert (together - turned).abs().max() <= TOLERANCE
    assert (together - alone).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", ["qwen3", "olmo2", "llama", "gemma3", "olmo2-heads", "qwen3-heads"])
def test_no_result_is_used_after_it_may_be_overwritten(
    monkeypatch: pytest.MonkeyPatch, small_model: Callable[[str], SmallModel], name: str
) -> None:
    family, _, variant = name.partition("-")
    if variant:  # as many key heads as query heads: their norms share a buffer
        case = CASES[family]
        equal = type(case)(name, case.config_class, {**case.arguments, "num_key_value_heads": 6}, None)
        monkeypatch.setitem(CASES, name, equal)
    forward = load(small_model(name)).encode_forward
    expected = run_pass(forward, TEXTS, Pooling.LAST)

    def forgetful(ops: Ops) -> Ops:
        return cast("Ops", ForgetfulOps(cast("ReferenceOps", ops)))

    assert torch.equal(run_pass(forward, TEXTS, Pooling.LAST, forgetful), expected)


def test_a_plain_decoder_generates_and_embeds_by_its_last_token(small_model: Callable[[str], SmallModel]) -> None:
    served = load(small_model("llama"))
    assert served.task is Task.GENERATE
    assert served.decoder is not None
    profile = served.text_encoder(64).profile
    assert (profile.embeds, profile.dim, profile.pooling) == (True, 48, Pooling.LAST)
    assert (served.dim, served.model_limit, served.vocab_size) == (48, 128, VOCAB_SIZE)


@pytest.mark.parametrize("name", NAMES)
def test_the_cpu_device_embeds_as_transformers(small_model: Callable[[str], SmallModel], name: str) -> None:
    model = small_model(name)
    device = CpuDevice(threads=1)
    served = load_served(open_checkpoint(model.directory), device, tokenizer=chat_tokenizer(), max_seq=64)
    num_tokens = sum(map(len, TEXTS))
    bucket = EncodeBucket(num_texts=len(TEXTS), num_tokens=num_tokens, max_text_tokens=40)
    program = device.record_encode(served.encode_forward, bucket)
    poolings = (Pooling.LAST, Pooling.CLS, Pooling.MEAN, Pooling.LAST)
    step = encode_step(TEXTS, poolings)
    found = normalized(torch.from_numpy(program.launch(step).vectors()))
    expected = torch.stack([reference(model, ids, pooling) for ids, pooling in zip(TEXTS, poolings, strict=True)])
    assert (found - expected).abs().max() <= TOLERANCE
