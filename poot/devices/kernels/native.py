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
from pathlib import Path
from typing import Any

import torch

from poot.devices.base import KV_BLOCK_SIZE, RopeTable
from poot.devices.formats import Format
from poot.devices.kernels.dequantize import DENSE_DTYPES
from poot.errors import DeviceError

# Raised with every change of a C signature or of a meaning; POOT_ABI_VERSION in cpu/poot_native.h says the same.
ABI_VERSION = 1

_int = ctypes.c_int
_size = ctypes.c_int64
_pointer = ctypes.c_void_p
_float = ctypes.c_float

# name -> (result type, argument types), as cpu/poot_native.h declares them.
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "poot_isa": (ctypes.c_char_p, ()),
    "poot_select_isa": (_int, (ctypes.c_char_p,)),
    "poot_format_id": (_int, (ctypes.c_char_p,)),
    "poot_dequantize": (None, (_int, _pointer, _size, _size, _pointer, _int)),
    "poot_linear": (None, (_int, _pointer, _size, _size, _pointer, _size, _size, _pointer, _size, _pointer, _int)),
    "poot_attention": (
        None,
        (*(_pointer,) * 7, *(_size,) * 6, _float, _size, _float, _int),
    ),
    "poot_rms_norm": (None, (_pointer, _pointer, _size, _size, _float, _pointer, _int)),
    "poot_rope": (None, (_pointer, *(_size,) * 5, _int, _pointer, _pointer, _pointer)),
    "poot_gated_silu": (None, (_pointer, _size, _size, _pointer, _int)),
    "poot_gated_gelu_tanh": (None, (_pointer, _size, _size, _pointer, _int)),
    "poot_add": (None, (_pointer, _pointer, _float, _size)),
}


class NativeKernels:
    """The functions of one loaded library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """
        Raises:
            DeviceError: the library was built from other sources than this file belongs to.
        """
        functions: dict[str, Any] = {}
        try:
            library.poot_abi_version.restype = ctypes.c_int
            version = library.poot_abi_version()
            if version != ABI_VERSION:
                raise DeviceError(_stale(f"it has version {version}, not {ABI_VERSION}"))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
                functions[name] = function
        except AttributeError as error:
            raise DeviceError(_stale(f"it lacks a function ({error})")) from error
        self.version: int = version
        self._functions = functions
        self._format_ids: dict[Format, int] = {
            format: functions["poot_format_id"](format.label.encode()) for format in Format
        }
        missing = [format.label for format, number in self._format_ids.items() if number < 0]
        if missing:
            raise DeviceError(_stale(f"it does not know {', '.join(missing)}"))
        self._linear = functions["poot_linear"]
        self._dequantize = functions["poot_dequantize"]
        self._attention = functions["poot_attention"]
        self._rms_norm = functions["poot_rms_norm"]
        self._rope = functions["poot_rope"]
        self._gated_silu = functions["poot_gated_silu"]
        self._gated_gelu_tanh = functions["poot_gated_gelu_tanh"]
        self._add = functions["poot_add"]

    @property
    def isa(self) -> str:
        """The instruction set in use: "avx512", "avx2" or "generic"."""
        name: bytes = self._functions["poot_isa"]()
        return name.decode()

    def select_isa(self, name: str) -> bool:
        """Uses instruction set `name` from now on; False, with nothing changed, if it was not built or this processor
        lacks it. Meant for tests: the best one is chosen on loading. Not to be called while a kernel runs."""
        return bool(self._functions["poot_select_isa"](name.encode()))

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
        rows, in_features = x.shape
        out_features = weight.shape[0]
        assert _is_stored(format, weight, (out_features, in_features)), (format, weight.shape, weight.dtype)
        assert x.dtype == out.dtype == torch.float32, (x.dtype, out.dtype)
        assert out.shape == (rows, out_features), (out.shape, rows, out_features)
        assert x.stride(1) == out.stride(1) == 1, (x.stride(), out.stride())
        assert bias is None or _is_whole(bias, torch.float32, (out_features,)), bias
        self._linear(
            self._format_ids[format],
            weight.data_ptr(),
            out_features,
            in_features,
            x.data_ptr(),
            x.stride(0),
            rows,
            out.data_ptr(),
            out.stride(0),
            None if bias is None else bias.data_ptr(),
            threads,
        )

    def dequantize(self, format: Format, data: torch.Tensor, out: torch.Tensor, threads: int) -> None:
        """Writes the weights of `data` `[rows, row_bytes]` to `out`, f32 `[rows, num_weights]`; both contiguous.

        The bits are those of `poot.devices.kernels.dequantize`.
        """
        rows, num_weights = out.shape
        assert _is_stored(format, data, (rows, num_weights)), (format, data.shape, data.dtype)
        assert _is_whole(out, torch.float32, (rows, num_weights)), (out.dtype, out.stride())
        self._dequantize(self._format_ids[format], data.data_ptr(), rows, num_weights, out.data_ptr(), threads)

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
        num_slots, num_kv_heads, _ = key_pool.shape
        num_rows, max_blocks = block_tables.shape
        assert query.dtype == torch.float32, query.dtype
        assert _has_whole_heads(query), query.stride()
        assert _is_whole(key_pool, torch.float32, (num_slots, num_kv_heads, head_dim)), key_pool.shape
        assert _is_whole(value_pool, torch.float32, (num_slots, num_kv_heads, head_dim)), value_pool.shape
        assert num_heads % num_kv_heads == 0, (num_heads, num_kv_heads)
        assert _is_whole(out, torch.float32, (num_tokens, num_heads * head_dim)), out.shape
        assert _is_whole(block_tables, torch.int32, (num_rows, max_blocks)), block_tables.dtype
        assert _is_whole(query_starts, torch.int32, (num_rows + 1,)), query_starts.shape
        assert _is_whole(context_lengths, torch.int32, (num_rows,)), context_lengths.shape
        self._attention(
            query.data_ptr(),
            key_pool.data_ptr(),
            value_pool.data_ptr(),
            block_tables.data_ptr(),
            query_starts.data_ptr(),
            context_lengths.data_ptr(),
            out.data_ptr(),
            query.stride(0),
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

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor | None, eps: float, out: torch.Tensor, threads: int = 1
    ) -> None:
        """Writes `x / sqrt(mean(x ** 2) + eps) * weight` over the last dimension to `out`; all f32, contiguous.

        `out` may be `x`.
        """
        dim = x.shape[-1]
        assert _is_whole(x, torch.float32, x.shape), (x.dtype, x.stride())
        assert _is_whole(out, torch.float32, x.shape), (out.shape, x.shape)
        assert weight is None or _is_whole(weight, torch.float32, (dim,)), weight
        self._rms_norm(
            x.data_ptr(),
            None if weight is None else weight.data_ptr(),
            x.numel() // dim,
            dim,
            eps,
            out.data_ptr(),
            threads,
        )

    def rope(self, x: torch.Tensor, table: RopeTable, positions: torch.Tensor) -> None:
        """Rotates the first `rotary_dim` values of every head in place.

        Args:
            x: f32 `[num_tokens, num_heads, head_dim]`; each token's heads contiguous, any token stride.
            positions: int64 `[num_tokens]`, each below the table's length.
        """
        num_tokens, num_heads, head_dim = x.shape
        table_shape = (table.cos.shape[0], table.rotary_dim // 2)
        assert x.dtype == torch.float32, x.dtype
        assert _has_whole_heads(x), x.stride()
        assert _is_whole(positions, torch.int64, (num_tokens,)), positions.shape
        assert _is_whole(table.cos, torch.float32, table_shape), table.cos.shape
        assert _is_whole(table.sin, torch.float32, table_shape), table.sin.shape
        assert table.rotary_dim <= head_dim, (table.rotary_dim, head_dim)
        self._rope(
            x.data_ptr(),
            x.stride(0),
            num_tokens,
            num_heads,
            head_dim,
            table.rotary_dim,
            table.interleaved,
            table.cos.data_ptr(),
            table.sin.data_ptr(),
            positions.data_ptr(),
        )

    def gated_silu(self, gate_up: torch.Tensor, out: torch.Tensor, threads: int = 1) -> None:
        """Writes `silu(gate) * up` of `gate_up` f32 `[rows, 2 * n]`, gate first, to `out` `[rows, n]`; contiguous."""
        rows, n = self._gate_shape(gate_up, out)
        self._gated_silu(gate_up.data_ptr(), rows, n, out.data_ptr(), threads)

    def gated_gelu_tanh(self, gate_up: torch.Tensor, out: torch.Tensor, threads: int = 1) -> None:
        """Writes `gelu_tanh(gate) * up` of `gate_up`, laid out as for `gated_silu`, to `out`."""
        rows, n = self._gate_shape(gate_up, out)
        self._gated_gelu_tanh(gate_up.data_ptr(), rows, n, out.data_ptr(), threads)

    @staticmethod
    def _gate_shape(gate_up: torch.Tensor, out: torch.Tensor) -> tuple[int, int]:
        rows, n = out.shape
        assert _is_whole(out, torch.float32, (rows, n)), (out.dtype, out.stride())
        assert _is_whole(gate_up, torch.float32, (rows, 2 * n)), (gate_up.shape, out.shape)
        return rows, n

    def add(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> None:
        """Adds `scale * y` to `x` in place; f32, contiguous, of one shape."""
        assert _is_whole(x, torch.float32, x.shape), (x.dtype, x.stride())
        assert _is_whole(y, torch.float32, x.shape), (y.shape, x.shape)
        self._add(x.data_ptr(), y.data_ptr(), scale, x.numel())


def _is_whole(tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    return tensor.dtype == dtype and tensor.shape == shape and tensor.is_contiguous()


def _has_whole_heads(x: torch.Tensor) -> bool:
    """Whether each token's heads of x `[num_tokens, num_heads, head_dim]` lie end to end."""
    return x.stride(2) == 1 and (x.stride(1) == x.shape[2] or x.shape[1] == 1)


def _is_stored(format: Format, data: torch.Tensor, shape: tuple[int, int]) -> bool:
    """Whether `data` holds weights of `shape` in `format`."""
    if format.is_dense:
        return _is_whole(data, DENSE_DTYPES[format], shape)
    return _is_whole(data, torch.uint8, (shape[0], format.row_bytes(shape[1])))


def _stale(why: str) -> str:
    return f"the native kernels do not fit this version of poot: {why}; reinstall poot-serve to rebuild them"


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
