"""A small llama with packed matrices against transformers run on gguf-py's unpacking of the same matrices."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers

from poot.devices.torch_device import CpuDevice
from poot.engine.checkpoint import open_checkpoint
from poot.engine.models import load_model
from tests.engine.models.small_models import COMMON, Case, SmallModel, make_small_model, write_gguf
from tests.fakes.driver import Driver
from tests.fakes.reference_device import ReferenceDevice

PROMPT = [7, 99, 150, 31, 266, 8, 8, 41, 300, 12, 77]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}  # whole blocks of 32
    return make_small_model(Case("packed", "LlamaConfig", {**COMMON, **sizes}), tmp_path_factory.mktemp("packed"))


@pytest.mark.parametrize("device_name", ["reference", "cpu"])
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_packed_weights_compute_what_their_unpacked_values_say(
    llama: SmallModel, tmp_path: Path, kind: str, device_name: str
) -> None:
    config = llama.reference.config
    path = tmp_path / "packed.gguf"
    write_gguf("LLAMA", config, dict(llama.reference.state_dict()), path, matrix_type=kind)
    packed_type = gguf.GGMLQuantizationType[kind]
    unpacked = {
        name: torch.from_numpy(
            gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), packed_type), packed_type).astype(np.float32)
        )
        if tensor.ndim == 2
        else tensor
        for name, tensor in llama.reference.state_dict().items()
    }
    reference = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    reference.load_state_dict(unpacked)
    with torch.inference_mode():
        expected = reference(torch.tensor([PROMPT])).logits[0]

    device = ReferenceDevice() if device_name == "reference" else CpuDevice()
    model = load_model(open_checkpoint(path), device, max_positions=64)
    driver = Driver(model, device, max_seq=32)
    torch.testing.assert_close(driver.prefill(PROMPT), expected, atol=1e-4, rtol=0)
    driver.reset()
    torch.testing.assert_close(driver.prefill(PROMPT, chunk=1), expected, atol=1e-4, rtol=0)
