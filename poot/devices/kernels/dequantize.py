"""Stored weights as f32, in plain torch: the reference of every packed kernel, and the path of devices without one.

Each block format is one function from bytes to numbers, written from the layout that ggml documents beside its
structs (`ggml-common.h`, `block_q4_0` and following, ggml as of gguf-py 0.17). Every weight is computed in f32 by one
multiplication, and one addition or subtraction where the format has a minimum, in the order gguf-py uses, so that the
result is equal bit for bit (a NaN for a NaN of any payload: a NaN has no one bit pattern across processors).
This file knows nothing of models, and runs on any torch device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from poot.devices.formats import Format

DENSE_DTYPES = {Format.F32: torch.float32, Format.F16: torch.float16, Format.BF16: torch.bfloat16}

# The 4-bit codebook of IQ4_NL and IQ4_XS (ggml-common.h, kvalues_iq4nl).
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

# E2M1 numbers times two, which makes them whole (OCP Microscaling Formats 1.0, section 5.3.3); the scale is halved.
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def dequantize(format: Format, data: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The weights of `data` as f32 `[rows, num_weights]`, on the device of `data`.

    Args:
        format: how `data` is laid out.
        data: packed: uint8 `[rows, row_bytes]`; dense: `[rows, num_weights]` of the format's dtype. Contiguous, or
            with contiguous rows. Not changed.
        out: where to write, f32 `[rows, num_weights]`, contiguous; allocated if None.

    Besides the result it holds at most about 1.5 times the result's bytes.
    """
    if format.is_dense:
        assert data.dtype == DENSE_DTYPES[format], (format, data.dtype)
        return data.to(torch.float32) if out is None else out.copy_(data)
    assert data.dtype == torch.uint8, data.dtype
    assert data.dim() == 2, data.shape
    assert data.shape[1] % format.block_bytes == 0, (format, data.shape)
    rows, row_bytes = data.shape
    num_weights = row_bytes // format.block_bytes * format.block_weights
    if out is None:
        out = torch.empty((rows, num_weights), dtype=torch.float32, device=data.device)
    assert out.shape == (rows, num_weights), (out.shape, rows, num_weights)
    assert out.dtype == torch.float32
    blocks = data.reshape(-1, format.block_bytes)
    _UNPACK[format](blocks, out.view(-1, format.block_weights))
    return out


def _half(blocks: torch.Tensor, offset: int) -> torch.Tensor:
    """The little-endian f16 at byte `offset` of every block, as f32 `[num_blocks, 1]`."""
    return blocks[:, offset : offset + 2].contiguous().view(torch.float16).to(torch.float32)


def _fields(packed: torch.Tensor, bits: int, group_bytes: int) -> torch.Tensor:
    """Bit fields of `packed` `[num_blocks, num_bytes]`, as uint8 `[num_blocks, num_bytes * 8 / bits]`.

    Bytes are taken in groups of `group_bytes`: first the lowest field of each byte of a group, then the next higher
    field of each, so that one shift serves a run of neighbouring weights.
    """
    groups = packed.reshape(len(packed), -1, group_bytes)
    mask = (1 << bits) - 1
    fields = torch.stack([(groups >> shift) & mask for shift in range(0, 8, bits)], dim=2)
    return fields.reshape(len(packed), -1)


def _unpack_q4_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """d f16, 16 bytes of codes: low nibbles are weights 0 to 15, high nibbles 16 to 31; w = d * (q - 8)."""
    out.copy_(_fields(blocks[:, 2:], 4, 16)).sub_(8).mul_(_half(blocks, 0))


def _unpack_q4_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """d f16, m f16, codes as in Q4_0; w = d * q + m."""
    out.copy_(_fields(blocks[:, 4:], 4, 16)).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _five_bits(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Codes of Q5_0 and Q5_1: `low` as in Q4_0, the fifth bit of weight i in bit i of the four bytes `high`."""
    return _fields(low, 4, 16) | (_fields(high, 1, 1) << 4)


def _unpack_q5_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """d f16, 4 bytes of fifth bits, 16 bytes of low nibbles; w = d * (q - 16)."""
    out.copy_(_five_bits(blocks[:, 2:6], blocks[:, 6:])).sub_(16).mul_(_half(blocks, 0))


def _unpack_q5_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """d f16, m f16, 4 bytes of fifth bits, 16 bytes of low nibbles; w = d * q + m."""
    out.copy_(_five_bits(blocks[:, 4:8], blocks[:, 8:])).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _unpack_q8_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """d f16, 32 signed bytes; w = d * q."""
    out.copy_(blocks[:, 2:].view(torch.int8)).mul_(_half(blocks, 0))


def _unpack_q2_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """16 bytes of 4-bit scale (low) and minimum (high), 64 bytes of codes, d f16, dmin f16.

    Sub-blocks of 16 weights; w = (d * scale) * q - (dmin * minimum).
    """
    scales = _half(blocks, 80) * (blocks[:, :16] & 15).to(torch.float32)
    minimums = _half(blocks, 82) * (blocks[:, :16] >> 4).to(torch.float32)
    out.copy_(_fields(blocks[:, 16:80], 2, 32))
    out.view(-1, 16, 16).mul_(scales.unsqueeze(2)).sub_(minimums.unsqueeze(2))


def _unpack_q3_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """32 bytes of third bits, 64 bytes of low codes, 12 bytes of sixteen 6-bit scales, d f16.

    A clear third bit subtracts 4. Scales: 8 bytes hold the low nibbles, 4 bytes the high pairs; each is less 32.
    Sub-blocks of 16 weights; w = (d * (scale - 32)) * q.
    """
    packed = blocks[:, 96:108]
    codes = _fields(packed[:, :8], 4, 8) | (_fields(packed[:, 8:], 2, 4) << 4)
    scales = _half(blocks, 108) * codes.to(torch.float32).sub_(32)
    out.copy_(_fields(blocks[:, 32:96], 2, 32) | (_fields(blocks[:, :32], 1, 32) << 2)).sub_(4)
    out.view(-1, 16, 16).mul_(scales.unsqueeze(2))


def _scales_and_minimums(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The eight 6-bit scales and minimums of a Q4_K or Q5_K block, f32 `[num_blocks, 8]` each, from 12 bytes.

    Bytes 0 to 3 hold scales 0 to 3 in their low six bits, bytes 4 to 7 minimums 0 to 3. Scale and minimum 4 + i have
    their low nibbles in byte 8 + i (scale low, minimum high) and their top two bits in the top of bytes i and 4 + i.
    """
    first, second, low = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([first & 63, (low & 15) | ((first >> 2) & 48)], dim=1)
    minimums = torch.cat([second & 63, (low >> 4) | ((second >> 2) & 48)], dim=1)
    return scales.to(torch.float32), minimums.to(torch.float32)


def _unpack_q4_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """d f16, dmin f16, 12 bytes of scales and minimums, 128 bytes of codes (32 bytes serve 64 weights).

    Sub-blocks of 32 weights; w = (d * scale) * q - (dmin * minimum).
    """
    scales, minimums = _scales_and_minimums(blocks[:, 4:16])
    scales.mul_(_half(blocks, 0))
    minimums.mul_(_half(blocks, 2))
    out.copy_(_fields(blocks[:, 16:], 4, 32))
    out.view(-1, 8, 32).mul_(scales.unsqueeze(2)).sub_(minimums.unsqueeze(2))


def _unpack_q5_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """As Q4_K, with 32 bytes of fifth bits before the codes: bit j of byte i belongs to weight 32 * j + i."""
    scales, minimums = _scales_and_minimums(blocks[:, 4:16])
    scales.mul_(_half(blocks, 0))
    minimums.mul_(_half(blocks, 2))
    out.copy_(_fields(blocks[:, 48:], 4, 32) | (_fields(blocks[:, 16:48], 1, 32) << 4))
    out.view(-1, 8, 32).mul_(scales.unsqueeze(2)).sub_(minimums.unsqueeze(2))


def _unpack_q6_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """128 bytes of low nibbles (64 bytes serve 128 weights), 64 bytes of high pairs, 16 signed scales, d f16.

    Sub-blocks of 16 weights; w = (d * scale) * (q - 32).
    """
    scales = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).to(torch.float32)
    out.copy_(_fields(blocks[:, :128], 4, 64) | (_fields(blocks[:, 128:192], 2, 32) << 4)).sub_(32)
    out.view(-1, 16, 16).mul_(scales.unsqueeze(2))


def _look_up(values: tuple[int, ...], codes: torch.Tensor, out: torch.Tensor) -> None:
    """Writes `values[codes]` to `out`, both `[num_blocks, block_weights]`."""
    table = torch.tensor(values, dtype=torch.float32, device=out.device)
    torch.index_select(table, 0, codes.reshape(-1).to(torch.int32), out=out.view(-1))


def _unpack_iq4_nl(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """d f16, codes as in Q4_0; w = d * value[q]."""
    _look_up(IQ4_VALUES, _fields(blocks[:, 2:], 4, 16), out)
    out.mul_(_half(blocks, 0))


def _unpack_iq4_xs(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """d f16, 2 bytes of the scales' high pairs, 4 bytes of their low nibbles, 128 bytes of codes.

    Sub-blocks of 32 weights, codes of each as in Q4_0; w = (d * (scale - 32)) * value[q].
    """
    codes = _fields(blocks[:, 4:8], 4, 1) | (_fields(blocks[:, 2:4], 2, 1) << 4)
    scales = _half(blocks, 0) * codes.to(torch.float32).sub_(32)
    _look_up(IQ4_VALUES, _fields(blocks[:, 8:], 4, 16), out)
    out.view(-1, 8, 32).mul_(scales.unsqueeze(2))


def _unpack_mxfp4(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """An E8M0 exponent e, codes as in Q4_0; w = 2 ** (e - 128) * value[q].

    e = 255, which the OCP document calls NaN, counts as 2 ** 127, as in ggml.
    """
    exponent = blocks[:, :1].to(torch.int32)
    # 2 ** -128 and 2 ** -127 are subnormal numbers, with a bit pattern of their own.
    bits = torch.where(exponent < 2, 0x00200000 << exponent, (exponent - 1) << 23)
    _look_up(MXFP4_VALUES, _fields(blocks[:, 1:], 4, 16), out)
    out.mul_(bits.view(torch.float32))


_UNPACK: dict[Format, Callable[[torch.Tensor, torch.Tensor], None]] = {
    Format.Q4_0: _unpack_q4_0,
    Format.Q4_1: _unpack_q4_1,
    Format.Q5_0: _unpack_q5_0,
    Format.Q5_1: _unpack_q5_1,
    Format.Q8_0: _unpack_q8_0,
    Format.Q2_K: _unpack_q2_k,
    Format.Q3_K: _unpack_q3_k,
    Format.Q4_K: _unpack_q4_k,
    Format.Q5_K: _unpack_q5_k,
    Format.Q6_K: _unpack_q6_k,
    Format.IQ4_NL: _unpack_iq4_nl,
    Format.IQ4_XS: _unpack_iq4_xs,
    Format.MXFP4: _unpack_mxfp4,
}
