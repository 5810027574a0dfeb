"""Every family, from safetensors and from GGUF, against transformers in f32.

Tolerance 1e-4 absolute on logits of a few units: sums of a few dozen f32 products in another order differ by about
1e-6 each, and a few layers amplify that by less than ten.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from poot.devices.base import Device
from poot.devices.torch_device import CpuDevice
from poot.engine.checkpoint import open_checkpoint
from poot.engine.models import DecoderModel, load_model, read_spec
from tests.engine.models.small_models import CASES, MAX_POSITIONS, VOCAB_SIZE, SmallModel
from tests.fakes.driver import Driver
from tests.fakes.reference_device import ReferenceDevice

TOLERANCE = 1e-4
PROMPT = [(37 * index + 11) % (VOCAB_SIZE - 3) + 3 for index in range(23)]
OTHER_PROMPT = [(53 * index + 5) % (VOCAB_SIZE - 3) + 3 for index in range(19)]

FORMS = [
    pytest.param(case.name, form, id=f"{case.name}-{form}")
    for case in CASES.values()
    for form in ("safetensors", "gguf")
    if form == "safetensors" or case.gguf_arch is not None
]

GetSmallModel = Callable[[str], SmallModel]


DEVICES: dict[str, Callable[[], Device]] = {"reference": ReferenceDevice, "cpu": CpuDevice}


def load(model: SmallModel, form: str, device: Device) -> tuple[DecoderModel, Device]:
    path = model.directory if form == "safetensors" else model.gguf_file
    assert path is not None
    return load_model(open_checkpoint(path), device, max_positions=MAX_POSITIONS), device


@pytest.mark.parametrize("device_name", DEVICES)
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_logits_and_greedy_tokens_equal_transformers(
    small_model: GetSmallModel, name: str, form: str, device_name: str
) -> None:
    reference = small_model(name)
    model, device = load(reference, form, DEVICES[device_name]())
    expected = reference.logits(PROMPT)
    assert expected.std() > 0.5, "a model that says nothing would pass any comparison"
    driver = Driver(model, device, max_seq=64)
    torch.testing.assert_close(driver.prefill(PROMPT), expected, atol=TOLERANCE, rtol=0)
    driver.reset()
    assert driver.greedy(PROMPT, 16) == reference.greedy(PROMPT, 16)


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_prefill_in_chunks_and_token_by_token_equals_one_piece(
    small_model: GetSmallModel, name: str, form: str
) -> None:
    model, device = load(small_model(name), form, ReferenceDevice())
    driver = Driver(model, device, max_seq=64)
    whole = driver.prefill(PROMPT)
    for chunk in (5, 1):
        driver.reset()
        torch.testing.assert_close(driver.prefill(PROMPT, chunk=chunk), whole, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3", "smollm3-layers"])
def test_rows_of_one_step_do_not_see_each_other(small_model: GetSmallModel, name: str) -> None:
    model, device = load(small_model(name), "safetensors", CpuDevice())
    driver = Driver(model, device, max_seq=64, num_rows=2)
    alone = driver.prefill(PROMPT)[-1], driver.prefill(OTHER_PROMPT, row=1)[-1]
    driver.reset()
    driver.run([(1, OTHER_PROMPT[:9]), (0, PROMPT[:4])])
    together = driver.run([(0, PROMPT[4:]), (1, OTHER_PROMPT[9:])])
    torch.testing.assert_close(together, torch.stack(alone), atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [case.name for case in CASES.values() if case.gguf_arch is not None])
def test_gguf_and_safetensors_describe_the_same_model(small_model: GetSmallModel, name: str) -> None:
    reference = small_model(name)
    assert reference.gguf_file is not None
    from_gguf = read_spec(open_checkpoint(reference.gguf_file))
    from_hub = read_spec(open_checkpoint(reference.directory))
    assert [layer.window for layer in from_gguf.layers] == [layer.window for layer in from_hub.layers]
    assert from_gguf.max_positions == from_hub.max_positions
    assert from_gguf.tied_embeddings == from_hub.tied_embeddings
    for ours, theirs in zip(from_gguf.layers, from_hub.layers, strict=True):
        assert (ours.rope is None) == (theirs.rope is None)
        if ours.rope is not None and theirs.rope is not None:
            # GGUF stores factors and bases as f32.
            assert ours.rope.inverse_frequencies == pytest.approx(theirs.rope.inverse_frequencies, rel=1e-6)
            assert ours.rope.attention_factor == pytest.approx(theirs.rope.attention_factor, rel=1e-6)


def test_long_rope_ends_at_the_context_it_is_exact_for(small_model: GetSmallModel) -> None:
    reference = small_model("phi3-long")
    assert read_spec(open_checkpoint(reference.directory)).max_positions == 64
