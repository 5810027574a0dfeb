"""How a stored weight is laid out: the dense types and the GGUF block types poot serves.

A format says how many weights a block holds and how many bytes it takes; what the bytes mean is the business of
`poot.devices.kernels`. Block layouts follow ggml's `ggml-common.h`; sizes were checked against gguf-py's
`GGML_QUANT_SIZES` in the tests.
"""

from __future__ import annotations

from enum import Enum


class Format(Enum):
    """One storage format. Members' values are (name, weights per block, bytes per block)."""

    F32 = ("F32", 1, 4)
    F16 = ("F16", 1, 2)
    BF16 = ("BF16", 1, 2)
    Q4_0 = ("Q4_0", 32, 18)
    Q4_1 = ("Q4_1", 32, 20)
    Q5_0 = ("Q5_0", 32, 22)
    Q5_1 = ("Q5_1", 32, 24)
    Q8_0 = ("Q8_0", 32, 34)
    Q2_K = ("Q2_K", 256, 84)
    Q3_K = ("Q3_K", 256, 110)
    Q4_K = ("Q4_K", 256, 144)
    Q5_K = ("Q5_K", 256, 176)
    Q6_K = ("Q6_K", 256, 210)
    IQ4_NL = ("IQ4_NL", 32, 18)
    IQ4_XS = ("IQ4_XS", 256, 136)
    MXFP4 = ("MXFP4", 32, 17)

    def __init__(self, label: str, block_weights: int, block_bytes: int) -> None:
        self.label = label
        self.block_weights = block_weights
        self.block_bytes = block_bytes

    @property
    def is_dense(self) -> bool:
        """Whether one weight is one number of a torch dtype."""
        return self.block_weights == 1

    def row_bytes(self, num_weights: int) -> int:
        """Bytes of a row of `num_weights` weights, which must be a multiple of the block."""
        assert num_weights % self.block_weights == 0, (self, num_weights)
        return num_weights // self.block_weights * self.block_bytes
