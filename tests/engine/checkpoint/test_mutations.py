"""Whatever is done to the bytes of a file, it parses or raises CheckpointError, soon and in little memory."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable, Mapping

import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from poot.devices.base import Weight
from poot.engine.checkpoint.gguf import parse_gguf
from poot.engine.checkpoint.safetensors import parse_safetensors
from poot.errors import CheckpointError
from tests.engine.checkpoint import gguf_bytes, safetensors_bytes

GGUF = gguf_bytes.valid_gguf()
SAFETENSORS = safetensors_bytes.valid_safetensors()

# A file of some hundred bytes has no business with more, whatever its counts say.
MAX_PEAK_BYTES = 1_000_000

Parse = Callable[[memoryview, str], Mapping[str, Weight]]


def gguf_tensors(buffer: memoryview, path: str) -> Mapping[str, Weight]:
    return parse_gguf(buffer, path).tensors


def safetensors_tensors(buffer: memoryview, path: str) -> Mapping[str, Weight]:
    return parse_safetensors(buffer, path).tensors


def check(parse: Parse, raw: bytes) -> bool:
    """Whether `raw` parsed. Fails the test on any other error, too much memory, or a tensor that is not inside."""
    tensors: Mapping[str, Weight] = {}
    refusal: CheckpointError | None = None
    tracemalloc.start()
    try:
        tensors = parse(memoryview(raw), "mutated")
    except CheckpointError as error:
        refusal = error
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < MAX_PEAK_BYTES
    if refusal is not None:
        text = str(refusal)
        assert text.startswith("mutated: ")
        assert "\n" not in text
        assert len(text) < 1000
        assert refusal.offset is None or 0 <= refusal.offset <= len(raw)
        return False
    for weight in tensors.values():
        int(weight.data.reshape(-1).view(torch.uint8).sum())  # reads every byte
    assert sum(weight.num_bytes for weight in tensors.values()) <= len(raw)
    return True


Edit = Callable[[bytes], bytes]

NUMBERS = st.one_of(
    st.sampled_from(
        [0, 1, 2, 7, 8, 9, 31, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**61, 2**63 - 1, 2**63, 2**64 - 1]
    ),
    st.integers(0, 2**64 - 1),
)
PLACES = st.integers(0, 2**16)


def overwrite(place: int, new: bytes) -> Edit:
    return lambda raw: raw[: place % (len(raw) + 1)] + new + raw[place % (len(raw) + 1) + len(new) :]


def flip(place: int, mask: int) -> Edit:
    def edit(raw: bytes) -> bytes:
        if not raw:
            return raw
        index = place % len(raw)
        return raw[:index] + bytes([raw[index] ^ mask]) + raw[index + 1 :]

    return edit


def move(source: int, length: int, target: int) -> Edit:
    def edit(raw: bytes) -> bytes:
        start = source % (len(raw) + 1)
        end = target % (len(raw) + 1)
        return raw[:end] + raw[start : start + length] + raw[end:]

    return edit


EDITS = st.one_of(
    st.builds(flip, PLACES, st.integers(1, 255)),
    st.builds(lambda place, value: overwrite(place, struct.pack("<Q", value)), PLACES, NUMBERS),
    st.builds(lambda place, value: overwrite(place, struct.pack("<I", value % 2**32)), PLACES, NUMBERS),
    st.builds(overwrite, PLACES, st.binary(min_size=1, max_size=16)),
    st.builds(lambda place: lambda raw: raw[: place % (len(raw) + 1)], PLACES),
    st.builds(
        lambda place, length: lambda raw: raw[: place % (len(raw) + 1)] + raw[place % (len(raw) + 1) + length :],
        PLACES,
        st.integers(1, 40),
    ),
    st.builds(move, PLACES, st.integers(1, 60), PLACES),
)

# A second is far more than such a file needs, and far less than a hang.
checked = settings(max_examples=300, deadline=1000, suppress_health_check=[HealthCheck.too_slow])


def test_the_unmutated_files_parse() -> None:
    assert check(gguf_tensors, GGUF)
    assert check(safetensors_tensors, SAFETENSORS)


@checked
@given(st.lists(EDITS, min_size=1, max_size=4))
def test_mutated_gguf_parses_or_is_refused(edits: list[Edit]) -> None:
    raw = GGUF
    for edit in edits:
        raw = edit(raw)
    check(gguf_tensors, raw)


@checked
@given(st.lists(EDITS, min_size=1, max_size=4))
def test_mutated_safetensors_parses_or_is_refused(edits: list[Edit]) -> None:
    raw = SAFETENSORS
    for edit in edits:
        raw = edit(raw)
    check(safetensors_tensors, raw)


def test_every_eight_bytes_of_a_gguf_may_be_the_largest_number() -> None:
    for place in range(len(GGUF)):
        for number in (0, 2**31, 2**64 - 1):
            check(gguf_tensors, overwrite(place, struct.pack("<Q", number))(GGUF)[: len(GGUF)])


@checked
@given(st.binary(max_size=200))
@example(b"")
def test_anything_after_a_gguf_head_parses_or_is_refused(rest: bytes) -> None:
    check(gguf_tensors, b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + rest)


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        NUMBERS,
        st.integers(-10, 40),
        st.floats(allow_nan=True),
        st.sampled_from(["F32", "F16", "BF16", "I64", "F8_E4M3", "\ud800"]),
        st.text(max_size=4),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "position_ids", "\ud800"]), inner
        ),
    ),
    max_leaves=12,
)
LOOKS_RIGHT = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BF16", "I64"]) | JSON,
        "shape": st.lists(st.integers(0, 3) | NUMBERS, max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(0, 32) | NUMBERS, min_size=2, max_size=2) | JSON,
    }
)


@checked
@given(st.dictionaries(st.sampled_from(["a", "position_ids", "\ud800\n"]), LOOKS_RIGHT) | JSON, st.integers(0, 40))
def test_any_json_header_parses_or_is_refused(header: object, data_bytes: int) -> None:
    raw = safetensors_bytes.safetensors(json.dumps(header), bytes(data_bytes))
    check(safetensors_tensors, raw)
