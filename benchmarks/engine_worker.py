"""poot's engine alone: no HTTP, no sockets; a request goes in and its events come out. Run by decode.py.

One JSON object a line, in and out; see `benchmarks/worker.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import anyio

import poot.devices  # noqa: F401 - before torch: it settles how long OpenMP threads spin, as in the server

# isort: split
import torch

from poot import __version__, server
from poot.config import Config, EngineConfig
from poot.engine.device_thread import DeviceThread
from poot.engine.engine import Engine
from poot.engine.sequence import Delta, Failed, GenerationRequest, SamplingParams
from poot.metrics import Metrics


async def generate(engine: Engine, prompt: list[int], num_tokens: int) -> tuple[float, float]:
    """Times (s) of the first and the last token of one greedy generation of `num_tokens` tokens."""
    request = GenerationRequest(
        prompt_ids=tuple(prompt), sampling=SamplingParams(temperature=0.0), max_tokens=num_tokens, ignore_eos=True
    )
    first = last = None
    async with engine.open(request) as events:
        async for event in events:
            if isinstance(event, Failed):
                raise RuntimeError(event.message)
            if isinstance(event, Delta):
                last = time.perf_counter()
                first = last if first is None else first
    assert first is not None
    assert last is not None
    return first, last


async def prefill(engine: Engine, prompts: list[list[int]]) -> float:
    """Tokens a second over one prompt, its first token's draw included."""
    (prompt,) = prompts
    started = time.perf_counter()
    first, _ = await generate(engine, prompt, 1)
    return len(prompt) / (first - started)


async def decode(engine: Engine, prompts: list[list[int]], num_tokens: int) -> float:
    """Tokens a second of all rows together, greedy, after one prompt a row."""
    times: list[tuple[float, float]] = []

    async def row(prompt: list[int]) -> None:
        times.append(await generate(engine, prompt, num_tokens))

    async with anyio.create_task_group() as rows:
        for prompt in prompts:
            rows.start_soon(row, prompt)
    return sum((num_tokens - 1) / (last - first) for first, last in times)


async def answer(served: server.Served, question: dict[str, Any]) -> float:
    """What one line asks for, on an engine of its own over the one prepared program."""
    executor = DeviceThread()
    engine = served.engine(executor, Metrics())
    async with anyio.create_task_group() as tasks:
        await tasks.start(executor.run)
        await tasks.start(engine.run)
        if question["measure"] == "prefill":
            rate = await prefill(engine, question["prompts"])
        else:
            rate = await decode(engine, question["prompts"], question["num_tokens"])
        tasks.cancel_scope.cancel()
    return rate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--max-seq", type=int, required=True)
    options = parser.parse_args()
    config = Config(model=options.model, engine=EngineConfig(rows=options.rows, max_seq=options.max_seq))
    served = server.load(config)
    ready = {
        "version": f"poot {__version__}, torch {torch.__version__}",
        "system": f"{served.info.device}; torch {torch.backends.cpu.get_cpu_capability()}",
        "num_threads": torch.get_num_threads(),
    }
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        rate = anyio.run(
            answer,
            served,
            json.loads(line),
            backend="asyncio",
            backend_options={"use_uvloop": server.HAS_UVLOOP},
        )
        print(json.dumps({"tokens_per_second": rate}), flush=True)


if __name__ == "__main__":
    main()
