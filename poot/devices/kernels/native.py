"""The native CPU kernels of `cpu/*.c`, loaded through ctypes.

The library is built when poot is installed (setup.py) and is optional: without a C compiler there is none,
`load_native` says None, and the torch reference beside each kernel serves. Every function works on f32 activations,
allocates nothing, releases the interpreter lock, and gives results that depend neither on the number of threads nor on
which other rows share a call. Tensors must be on the CPU; shapes, dtypes and strides are asserted, since a wrong one
would read foreign memory.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from poot.devices.base import KV_BLOCK_SIZE, RopeTable
from poot.devices.formats import Format
from poot.devices.kernels.dequantize import DENSE_DTYPES
from poot.errors import DeviceError

# Raised with every change of a C signature or of a meaning; POOT_ABI_VERSION in cpu/poot_native.h says the same.
ABI_VERSION = 1

# The records of cpu/poot_native.h: P a pointer, q an int64, d a double, all of eight bytes and so without padding.
# Packing the arguments and passing their address costs a fraction of ctypes' conversion of each.
_pack_dequantize = struct.Struct("@qPqqPq").pack
_pack_linear = struct.Struct("@qPqqPqqPqPq").pack
_pack_attention = struct.Struct("@PPPPPPPqqqqqqdqdq").pack
_pack_rms_norm = struct.Struct("@PPqqdPq").pack
_pack_rope = struct.Struct("@PqqqqqqPPP").pack
_pack_gated = struct.Struct("@PqqPq").pack
_pack_add = struct.Struct("@PPdq").pack

_Kernel = Callable[[bytes], None]


class NativeKernels:
    """The functions of one loaded library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """
        Raises:
            DeviceError: the library was built from other sources than this file belongs to.
        """
        try:
            self.version: int = library.poot_abi_version()
            if self.version != ABI_VERSION:
                raise DeviceError(_stale(f"they have version {self.version}, not {ABI_VERSION}"))
            self._isa = library.poot_isa
            self._isa.restype = ctypes.c_char_p
            self._select_isa = library.poot_select_isa
            self._select_isa.argtypes = (ctypes.c_char_p,)
            # For each format its number, the dtype of its data, and how many elements of it hold how many weights.
            self._formats: dict[Format, tuple[int, torch.dtype, int, int]] = {}
            for format in Format:
                number = library.poot_format_id(format.label.encode())
                if number < 0:
                    raise DeviceError(_stale(f"they do not know {format.label}"))
                elements = 1 if format.is_dense else format.block_bytes
                self._formats[format] = number, DENSE_DTYPES.get(format, torch.uint8), elements, format.block_weights
            self._dequantize = _kernel(library, "poot_dequantize")
            self._linear = _kernel(library, "poot_linear")
            self._attention = _kernel(library, "poot_attention")
            self._rms_norm = _kernel(library, "poot_rms_norm")
            self._rope = _kernel(library, "poot_rope")
            self._gated_silu = _kernel(library, "poot_gated_silu")
            self._gated_gelu_tanh = _kernel(library, "poot_gated_gelu_tanh")
            self._add = _kernel(library, "poot_add")
        except AttributeError as error:
            raise DeviceError(_stale(f"a function is missing ({error})")) from error

    @property
    def isa(self) -> str:
        """The instruction set in use: "avx512", "avx2" or "generic"."""
        name: bytes = self._isa()
        return name.decode()

    def select_isa(self, name: str) -> bool:
        """Uses instruction set `name` from now on; False, with nothing changed, if it was not built or this processor
        lacks it. Meant for tests: the best one is chosen on loading. Not to be called while a kernel runs."""
        return bool(self._select_isa(name.encode()))

    def linear(
        self,
        format: Format,
        weight: torch.Tensor,
        x: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None,
        threads: int,
    ) -> None:
        """Writes `x @ weight.T + bias` to `out`, accumulated in f32.

        Meant for few rows: one pass over the weights serves eight rows.

        Args:
            weight: packed: uint8 `[out_features, row_bytes]`; dense: `[out_features, in_features]`. Contiguous.
            x: f32 `[rows, in_features]`; rows contiguous, any row stride.
            out: f32 `[rows, out_features]`; may be a column slice of a wider buffer. Must not overlap x.
            bias: f32 `[out_features]` or None.
        """
        number, dtype, block_elements, block_weights = self._formats[format]
        rows, in_features = x.shape
        out_features, row_elements = weight.shape
        x_stride, x_step = x.stride()
        out_stride, out_step = out.stride()
        assert weight.dtype is dtype, (format, weight.dtype)
        assert row_elements * block_weights == in_features * block_elements, (format, weight.shape, x.shape)
        assert weight.is_contiguous()
        assert x.dtype is out.dtype is torch.float32, (x.dtype, out.dtype)
        assert out.shape == (rows, out_features), (out.shape, rows, out_features)
        assert x_step == out_step == 1, (x.stride(), out.stride())
        assert bias is None or _is_whole(bias, torch.float32, (out_features,)), bias
        self._linear(
            _pack_linear(
                number,
                weight.data_ptr(),
                out_features,
                in_features,
                x.data_ptr(),
                x_stride,
                rows,
                out.data_ptr(),
                out_stride,
                0 if bias is None else bias.data_ptr(),
                threads,
            )
        )

    def dequantize(self, format: Format, data: torch.Tensor, out: torch.Tensor, threads: int) -> None:
        """Writes the weights of `data` `[rows, row_bytes]` to `out`, f32 `[rows, num_weights]`; both contiguous.

        The bits are those of `poot.devices.kernels.dequantize`.
        """
        rows, num_weights = out.shape
        number, dtype, block_elements, block_weights = self._formats[format]
        assert num_weights % block_weights == 0, (format, num_weights)
        assert _is_whole(data, dtype, (rows, num_weights // block_weights * block_elements)), (format, data.shape)
        assert _is_whole(out, torch.float32, (rows, num_weights)), (out.dtype, out.stride())
        self._dequantize(_pack_dequantize(number, data.data_ptr(), rows, num_weights, out.data_ptr(), threads))

    def attention(
        self,
        query: torch.Tensor,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
        block_tables: torch.Tensor,
        query_starts: torch.Tensor,
        context_lengths: torch.Tensor,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
        out: torch.Tensor,
        threads: int,
    ) -> None:
        """Causal attention over the paged KV pool, as `attention_reference.attention`, for rows of few tokens.

        Args:
            query: f32 `[num_tokens, num_heads, head_dim]`; each token's heads contiguous, any token stride.
            key_pool, value_pool: f32 `[num_slots, num_kv_heads, head_dim]`, contiguous.
            block_tables: int32 `[num_rows, max_blocks]`, contiguous.
            query_starts: int32 `[num_rows + 1]`; tokens from its last entry on are not computed.
            context_lengths: int32 `[num_rows]`, each at least the row's token count.
            out: f32 `[num_tokens, num_heads * head_dim]`, contiguous.
        """
        num_tokens, num_heads, head_dim = query.shape
        _, num_kv_heads, kv_head_dim = key_pool.shape
        num_rows, max_blocks = block_tables.shape
        token_stride, head_stride, step = query.stride()
        assert query.dtype is key_pool.dtype is value_pool.dtype is out.dtype is torch.float32, out.dtype
        assert block_tables.dtype is query_starts.dtype is context_lengths.dtype is torch.int32, block_tables.dtype
        assert step == 1, query.stride()
        assert head_stride == head_dim or num_heads == 1, query.stride()
        assert kv_head_dim == head_dim, (key_pool.shape, query.shape)
        assert key_pool.shape == value_pool.shape, (key_pool.shape, value_pool.shape)
        assert num_heads % num_kv_heads == 0, (num_heads, num_kv_heads)
        assert out.shape == (num_tokens, num_heads * head_dim), (out.shape, query.shape)
        assert query_starts.shape == (num_rows + 1,), (query_starts.shape, num_rows)
        assert context_lengths.shape == (num_rows,), (context_lengths.shape, num_rows)
        for tensor in (key_pool, value_pool, out, block_tables, query_starts, context_lengths):
            assert tensor.is_contiguous(), (tensor.shape, tensor.stride())
        self._attention(
            _pack_attention(
                query.data_ptr(),
                key_pool.data_ptr(),
                value_pool.data_ptr(),
                block_tables.data_ptr(),
                query_starts.data_ptr(),
                context_lengths.data_ptr(),
                out.data_ptr(),
                token_stride,
                num_rows,
                max_blocks,
                num_heads,
                num_kv_heads,
                head_dim,
                scale,
                window or 0,
                softcap or 0.0,
                threads,
            )
        )

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor | None, eps: float, out: torch.Tensor, threads: int = 1
    ) -> None:
        """Writes `x / sqrt(mean(x ** 2) + eps) * weight` over the last dimension to `out`; all f32, contiguous.

        `out` may be `x`.
        """
        dim = x.shape[-1]
        assert x.dtype is out.dtype is torch.float32, (x.dtype, out.dtype)
        assert x.shape == out.shape, (x.shape, out.shape)
        assert x.is_contiguous()
        assert out.is_contiguous()
        assert weight is None or _is_whole(weight, torch.float32, (dim,)), weight
        pointer = 0 if weight is None else weight.data_ptr()
        self._rms_norm(_pack_rms_norm(x.data_ptr(), pointer, x.numel() // dim, dim, eps, out.data_ptr(), threads))

    def rope(self, x: torch.Tensor, table: RopeTable, positions: torch.Tensor) -> None:
        """Rotates the first `rotary_dim` values of every head in place.

        Args:
            x: f32 `[num_tokens, num_heads, head_dim]`; each token's heads contiguous, any token stride.
            positions: int64 `[num_tokens]`, each below the table's length.
        """
        num_tokens, num_heads, head_dim = x.shape
        token_stride, head_stride, step = x.stride()
        cos, sin, rotary_dim = table.cos, table.sin, table.rotary_dim
        assert x.dtype is cos.dtype is sin.dtype is torch.float32, (x.dtype, cos.dtype)
        assert step == 1, x.stride()
        assert head_stride == head_dim or num_heads == 1, x.stride()
        assert positions.dtype is torch.int64, positions.dtype
        assert positions.shape == (num_tokens,), (positions.shape, num_tokens)
        assert rotary_dim <= head_dim, (rotary_dim, head_dim)
        assert cos.shape == sin.shape == (len(cos), rotary_dim // 2), (cos.shape, sin.shape)
        for tensor in (cos, sin, positions):
            assert tensor.is_contiguous(), (tensor.shape, tensor.stride())
        self._rope(
            _pack_rope(
                x.data_ptr(),
                token_stride,
                num_tokens,
                num_heads,
                head_dim,
                rotary_dim,
                table.interleaved,
                cos.data_ptr(),
                sin.data_ptr(),
                positions.data_ptr(),
            )
        )

    def gated_silu(self, gate_up: torch.Tensor, out: torch.Tensor, threads: int = 1) -> None:
        """Writes `silu(gate) * up` of `gate_up` f32 `[rows, 2 * n]`, gate first, to `out` `[rows, n]`; contiguous."""
        rows, n = self._gate_shape(gate_up, out)
        self._gated_silu(_pack_gated(gate_up.data_ptr(), rows, n, out.data_ptr(), threads))

    def gated_gelu_tanh(self, gate_up: torch.Tensor, out: torch.Tensor, threads: int = 1) -> None:
        """Writes `gelu_tanh(gate) * up` of `gate_up`, laid out as for `gated_silu`, to `out`."""
        rows, n = self._gate_shape(gate_up, out)
        self._gated_gelu_tanh(_pack_gated(gate_up.data_ptr(), rows, n, out.data_ptr(), threads))

    @staticmethod
    def _gate_shape(gate_up: torch.Tensor, out: torch.Tensor) -> tuple[int, int]:
        rows, n = out.shape
        assert gate_up.dtype is out.dtype is torch.float32, (gate_up.dtype, out.dtype)
        assert gate_up.shape == (rows, 2 * n), (gate_up.shape, out.shape)
        assert gate_up.is_contiguous()
        assert out.is_contiguous()
        return rows, n

    def add(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> None:
        """Adds `scale * y` to `x` in place; f32, contiguous, of one shape."""
        assert x.dtype is y.dtype is torch.float32, (x.dtype, y.dtype)
        assert x.shape == y.shape, (x.shape, y.shape)
        assert x.is_contiguous()
        assert y.is_contiguous()
        self._add(_pack_add(x.data_ptr(), y.data_ptr(), scale, x.numel()))


def _kernel(library: ctypes.CDLL, name: str) -> _Kernel:
    """The kernel `name`, which takes a packed record."""
    function: Any = getattr(library, name)
    function.restype = None
    function.argtypes = (ctypes.c_char_p,)
    kernel: _Kernel = function
    return kernel


def _is_whole(tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    return tensor.dtype == dtype and tensor.shape == shape and tensor.is_contiguous()


def _stale(why: str) -> str:
    return f"the native kernels are not those of this version of poot: {why}; reinstall poot-serve to rebuild them"


def library_path() -> Path | None:
    """Where the built library lies, beside this file, or None if it was not built."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_native{suffix}")
        if path.is_file():
            return path
    return None


@functools.cache
def load_native() -> NativeKernels | None:
    """The native kernels, or None where they were not built.

    torch is imported before the library, so that both use the OpenMP runtime, and hence the threads, of torch.

    Raises:
        DeviceError: the library is there but does not load, or belongs to another version of poot.
    """
    path = library_path()
    if path is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise DeviceError(f"the native kernels do not load: {error}; reinstall poot-serve to rebuild them") from error
    kernels = NativeKernels(library)
    assert KV_BLOCK_SIZE == 16, "poot_attention is written for blocks of 16 positions"
    return kernels
