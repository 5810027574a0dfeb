"""A seeded request gives the same ids alone, among others, chunked or not, cached or not, speculated or not.

On SmolLM2, whose greedy continuations another implementation computed. At temperature 0.8 the measure is what the
request gives alone.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import gguf
import numpy as np
import pytest

from poot.config import Config, Draft, DraftLookup, DraftModel, EngineConfig
from poot.engine.device_thread import DeviceThread
from poot.engine.engine import Engine
from poot.engine.sequence import Event, Finished, GenerationRequest, SamplingParams
from poot.metrics import Metrics
from poot.server import HAS_UVLOOP, Served, load
from tests.engine.events import ids_of
from tests.models import require_model

DATA = Path(__file__).parents[1] / "data" / "smollm2-135m-instruct-q4_1.json"
# Below this gap between the best two logits, another order of summation may honestly prefer the other token.
SMALLEST_GAP = 0.02
NUM_TOKENS = 24
ROWS = 3


def references() -> list[tuple[list[int], list[int]]]:
    """Prompts with their greedy continuations, up to the first step that two orders of summation may decide."""
    entries = json.loads(DATA.read_text(encoding="utf-8"))
    return [
        (
            entry["ids"],
            [
                token
                for place, token in enumerate(entry["greedy_ids"])
                if min(entry["greedy_gap"][: place + 1]) >= SMALLEST_GAP
            ],
        )
        for entry in entries
    ]


def small_draft(path: Path, target: Path) -> Path:
    """A llama of one narrow layer with random weights and the tokenizer of `target`, as GGUF."""
    reader = gguf.GGUFReader(target)
    writer = gguf.GGUFWriter(path, "llama")
    for key, item in reader.fields.items():
        if not key.startswith("tokenizer."):
            continue
        kind, *inner = item.types
        value = item.contents()
        if kind is gguf.GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, kind, *inner)
    width, heads, vocab_size = 32, 2, len(reader.fields["tokenizer.ggml.tokens"].data)
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_rope_freq_base(10000.0)
    source = np.random.default_rng(3)
    for name, shape in {
        "token_embd": (vocab_size, width),
        "output_norm": (width,),
        "blk.0.attn_norm": (width,),
        "blk.0.ffn_norm": (width,),
        **{f"blk.0.attn_{part}": (width, width) for part in ("q", "k", "v", "output")},
        "blk.0.ffn_gate": (2 * width, width),
        "blk.0.ffn_up": (2 * width, width),
        "blk.0.ffn_down": (width, 2 * width),
    }.items():
        writer.add_tensor(f"{name}.weight", source.standard_normal(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Served]:
    """SmolLM2 without speculation, with prompt lookup, with itself as draft, and with a draft that knows nothing."""
    path = require_model("smollm2")
    small = small_draft(tmp_path_factory.mktemp("draft") / "small.gguf", path)
    drafts: dict[str, Draft | None] = {
        "plain": None,
        "lookup": DraftLookup(ngram=2, num_draft_tokens=6),
        "itself": DraftModel(path=path, num_draft_tokens=4),
        "small": DraftModel(path=small, num_draft_tokens=4),
    }
    return {
        name: load(Config(model=path, engine=EngineConfig(rows=ROWS, max_seq=512, draft=draft)))
        for name, draft in drafts.items()
    }


@asynccontextmanager
async def running(served: Served) -> AsyncIterator[Engine]:
    executor = DeviceThread()
    engine = served.engine(executor, Metrics())
    async with anyio.create_task_group() as tasks:
        await tasks.start(executor.run)
        await tasks.start(engine.run)
        yield engine
        tasks.cancel_scope.cancel()


async def events_of(engine: Engine, prompt: list[int], temperature: float) -> list[Event]:
    wanted = GenerationRequest(
        prompt_ids=tuple(prompt),
        sampling=SamplingParams(temperature=temperature, seed=11),
        max_tokens=NUM_TOKENS,
        ignore_eos=True,
    )
    async with engine.open(wanted) as events:
        return [event async for event in events]


def run(main: Any) -> None:
    anyio.run(main, backend="asyncio", backend_options={"use_uvloop": HAS_UVLOOP})


@pytest.mark.parametrize("name", ["plain", "lookup", "itself", "small"])
def test_greedy_ids_are_the_references_alone_in_a_crowd_and_cached(served: dict[str, Served], name: str) -> None:
    async def main() -> None:
        results: list[tuple[list[int], list[Event]]] = []
        async with running(served[name]) as engine:
            for _ in range(2):  # the second time every full block is there already
                async with anyio.create_task_group() as tasks:

                    async def ask(prompt: list[int], expected: list[int]) -> None:
                        results.append((expected, await events_of(engine, prompt, 0.0)))

                    for prompt, expected in references():
                        tasks.start_soon(ask, prompt, expected)
        num_compared = 0
        for expected, events in results:
            count = min(NUM_TOKENS, len(expected))
            assert ids_of(events)[:count] == expected[:count]
            num_compared += count
        assert num_compared > 100
        if name == "itself":
            ends = [events[-1] for _, events in results]
            drafted = sum(end.num_drafted_tokens for end in ends if isinstance(end, Finished))
            accepted = sum(end.num_accepted_tokens for end in ends if isinstance(end, Finished))
            assert accepted == drafted > 100

    run(main)


def test_a_seeded_request_draws_the_same_however_it_is_run(served: dict[str, Served]) -> None:
    long = [token for prompt, _ in references() for token in prompt][:200]
    prompts = [long, long[:100], *(prompt for prompt, _ in references())]

    async def main() -> None:
        alone = []
        for prompt in prompts:
            async with running(served["plain"]) as engine:
                alone.append(ids_of(await events_of(engine, prompt, 0.8)))
        for name, one in served.items():
            results: dict[int, list[int]] = {}
            async with running(one) as engine, anyio.create_task_group() as tasks:

                async def ask(engine: Engine, results: dict[int, list[int]], index: int) -> None:
                    results[index] = ids_of(await events_of(engine, prompts[index], 0.8))

                for index in range(len(prompts)):
                    tasks.start_soon(ask, engine, results, index)
            assert [results[index] for index in range(len(prompts))] == alone, name

    run(main)
