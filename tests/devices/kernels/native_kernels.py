"""What the tests of the native kernels share: the library, its instruction sets, and blocks with sane weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from poot.devices.formats import Format
from poot.devices.kernels.dequantize import DENSE_DTYPES
from poot.devices.kernels.native import NativeKernels, load_native

INSTRUCTION_SETS = ("generic", "avx2", "avx512")

# Byte offsets of the f16 scales of each block format.
SCALE_OFFSETS: dict[Format, tuple[int, ...]] = {
    Format.Q4_0: (0,),
    Format.Q4_1: (0, 2),
    Format.Q5_0: (0,),
    Format.Q5_1: (0, 2),
    Format.Q8_0: (0,),
    Format.Q2_K: (80, 82),
    Format.Q3_K: (108,),
    Format.Q4_K: (0, 2),
    Format.Q5_K: (0, 2),
    Format.Q6_K: (208,),
    Format.IQ4_NL: (0,),
    Format.IQ4_XS: (0,),
    Format.MXFP4: (),
}


@pytest.fixture(params=INSTRUCTION_SETS)
def native(request: pytest.FixtureRequest) -> Iterator[NativeKernels]:
    """The native kernels with each instruction set in turn; skips those that this machine does not have."""
    kernels = load_native()
    if kernels is None:
        pytest.skip("the native kernels were not built")
    best = kernels.isa
    if not kernels.select_isa(request.param):
        pytest.skip(f"this machine has no {request.param}")
    yield kernels
    assert kernels.select_isa(best)


def random_weight(format: Format, rows: int, num_weights: int, seed: int = 0) -> torch.Tensor:
    """Stored weights of random codes and scales, none of them infinite or NaN, mostly below 10."""
    generator = np.random.default_rng(seed)
    if format.is_dense:
        numbers = generator.standard_normal((rows, num_weights), dtype=np.float32)
        return torch.from_numpy(numbers).to(DENSE_DTYPES[format])
    blocks = generator.integers(0, 256, (rows, num_weights // format.block_weights, format.block_bytes), dtype=np.uint8)
    for offset in SCALE_OFFSETS[format]:
        scales = (generator.standard_normal(blocks.shape[:2]) * 0.01).astype(np.float16)
        blocks[:, :, offset : offset + 2] = scales[..., None].view(np.uint8)
    if format is Format.MXFP4:
        blocks[:, :, 0] = generator.integers(118, 126, blocks.shape[:2])
    return torch.from_numpy(blocks.reshape(rows, format.row_bytes(num_weights)))
