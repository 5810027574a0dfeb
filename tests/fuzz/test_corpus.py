"""Every harness over its seeds, over mutations of them and over anything: what `make fuzz` runs for longer."""

from __future__ import annotations

import importlib
import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fuzz
from fuzz.chat_template import TEMPLATES
from fuzz.make_corpus import CORPUS, DICTIONARIES, FOUND, SEEDS, WORDS, dictionary

Check = Callable[[bytes], None]

FILES = sorted(path for path in CORPUS.glob("*/*"))

# What a seed of some kilobytes may take at most while it is read.
MAX_PEAK_BYTES = 32 * 2**20
MAX_CORPUS_BYTES = 500_000

# The bytes that mean something to some parser here.
TOKENS = st.sampled_from(
    [
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\0",
        b":",
        b" ",
        b",",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b"{{",
        b"}}",
        b"{%",
        b"%}",
    ]
    + [b"\xff", b"\\ud800", b"<|im_end|>", b"Content-Length: 1\r\n", b"Transfer-Encoding: chunked\r\n", b"1e999", b"--"]
    + [struct.pack("<Q", number) for number in (0, 1, 2**31, 2**63, 2**64 - 1)]
)


def load(name: str) -> Check:
    check: Check = importlib.import_module(f"fuzz.{name}").check
    return check


def as_object(raw: bytes) -> dict[str, Any] | None:
    """The JSON object in `raw`, if it is one."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@st.composite
def mutations(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A seed with some of its bytes left out, repeated or replaced."""
    raw = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(raw)))
        end = draw(st.integers(start, min(len(raw), start + 20)))
        new = draw(st.one_of(TOKENS, st.binary(max_size=8), st.just(raw[start:end] * 2)))
        raw = raw[:start] + new + raw[end:]
    return raw


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_seed_holds_the_invariant_in_bounded_memory(path: Path) -> None:
    check = load(path.parent.name)
    raw = path.read_bytes()
    tracemalloc.start()
    try:
        check(raw)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MAX_PEAK_BYTES


@pytest.mark.parametrize("name", fuzz.HARNESSES)
def test_mutated_seeds_hold_the_invariant(name: str) -> None:
    check = load(name)
    seeds = [path.read_bytes() for path in FILES if path.parent.name == name]

    # Two seconds: far more than any of these needs, and far less than a hang.
    @settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.too_slow])
    @given(st.one_of(mutations(seeds), mutations(seeds), st.binary(max_size=300)))
    def hold(raw: bytes) -> None:
        check(raw)

    hold()


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 300),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.just("\ud800"),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["type", "text", "a", "1"]), inner, max_size=3)
    ),
    max_leaves=6,
)
BODIES = [body for body in map(as_object, SEEDS["request_bodies"].values()) if body]


@settings(max_examples=600, deadline=2000, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(BODIES), st.data())
def test_bodies_with_fields_replaced_hold_the_invariant(body: dict[str, Any], data: st.DataObject) -> None:
    bodies, templates = load("request_bodies"), load("chat_template")
    names = st.sampled_from(sorted({name for each in BODIES for name in each}))
    body = {**body, **data.draw(st.dictionaries(names, VALUES, max_size=2))}
    if "messages" in body and data.draw(st.booleans()):
        roles = st.sampled_from(["system", "user", "assistant", "developer"])
        text = st.text(max_size=3) | st.sampled_from(["<|im_end|>", "<|im_", "end|>", "<", "|im_start|>", "\ufdd0"])
        message = st.fixed_dictionaries({"role": roles, "content": text | VALUES}, optional={"name": text})
        body["messages"] = data.draw(st.lists(message, min_size=1, max_size=4))
    raw = json.dumps(body).encode()
    bodies(raw)
    for index in range(len(TEMPLATES)):
        templates(bytes((index,)) + raw)


def test_the_committed_seeds_are_those_that_are_made() -> None:
    committed = {
        name: {path.name: path.read_bytes() for path in (CORPUS / name).iterdir() if not path.name.startswith(FOUND)}
        for name in fuzz.HARNESSES
    }
    assert committed == SEEDS
    assert {path.name: path.read_text() for path in DICTIONARIES.iterdir()} == {
        name: dictionary(name) for name in WORDS
    }
    assert {path.parent.name for path in FILES} == set(fuzz.HARNESSES)
    assert sum(path.stat().st_size for path in FILES) < MAX_CORPUS_BYTES


@pytest.mark.parametrize("name", fuzz.HARNESSES)
def test_a_harness_opens_with_its_invariant(name: str) -> None:
    assert (importlib.import_module(f"fuzz.{name}").__doc__ or "").startswith("Invariant: ")
