#!/usr/bin/env python3
"""Prefill and decode speed: `python benchmarks/decode.py MODEL.gguf [--peer-python PYTHON]`.

Three contenders on the same file, threads and prompts: poot's engine alone, poot over HTTP, and llama.cpp through
llama-cpp-python where an interpreter has it (a peer, not a dependency). Each runs in a process of its own; rounds are
interleaved, so that a machine that slows down slows all of them; the table shows medians over the rounds and ratios
of those medians. Prompts are random token ids, new in every round, so that nothing is answered from a prefix cache.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

# Run as a script, Python looks for modules in this folder alone.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.http_client import HttpServer, environment_for
from benchmarks.worker import Worker, WorkerDied

HERE = Path(__file__).resolve().parent
ROWS = (1, 4)
MAX_SEQ = 2048
PREFILL_TOKENS = 512
DECODE_PROMPT_TOKENS = 16
# Ids below this are special tokens in the vocabularies of the models we measure.
FIRST_PLAIN_ID = 1000
LAST_PLAIN_ID = 30000
INSTRUCTION_SETS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimd", "asimddp", "i8mm")

# Threads of one step wait for each other, so that a core shared with another process slows all of them down.
BUSY_LOAD = 0.5

COLUMNS = (f"prefill {PREFILL_TOKENS}", *(f"decode, {rows} row{'s' if rows > 1 else ''}" for rows in ROWS))


@dataclass(kw_only=True)
class Contender:
    """One line of the table: how to measure it, and what was measured, tokens a second by column."""

    name: str
    prefill: Callable[[list[list[int]]], float]
    decode: Callable[[list[list[int]], int], float]
    rates: dict[str, list[float]] = field(default_factory=dict)
    died: str | None = None

    def run_round(self, seed: int, num_tokens: int) -> None:
        """Measure every column once. A contender that died is left out from then on."""
        if self.died is not None:
            return
        draw = random.Random(seed)
        try:
            self._note(COLUMNS[0], self.prefill(prompts(draw, 1, PREFILL_TOKENS)))
            for column, rows in zip(COLUMNS[1:], ROWS, strict=True):
                self._note(column, self.decode(prompts(draw, rows, DECODE_PROMPT_TOKENS), num_tokens))
        except WorkerDied as error:
            self.died = str(error)

    def _note(self, column: str, rate: float) -> None:
        self.rates.setdefault(column, []).append(rate)

    def median(self, column: str) -> float | None:
        rates = self.rates.get(column)
        return statistics.median(rates) if rates else None


def prompts(draw: random.Random, rows: int, num_tokens: int) -> list[list[int]]:
    return [[draw.randrange(FIRST_PLAIN_ID, LAST_PLAIN_ID) for _ in range(num_tokens)] for _ in range(rows)]


def worker_contender(name: str, worker: Worker) -> Contender:
    return Contender(
        name=name,
        prefill=lambda ids: float(worker.ask({"measure": "prefill", "prompts": ids})),
        decode=lambda ids, num: float(worker.ask({"measure": "decode", "prompts": ids, "num_tokens": num})),
    )


def has_peer(python: str) -> bool:
    """Whether that interpreter has llama-cpp-python."""
    check = "import importlib.util, sys; sys.exit(importlib.util.find_spec('llama_cpp') is None)"
    return subprocess.run([python, "-c", check], check=False).returncode == 0


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_machine(num_threads: int) -> list[str]:
    """The processor, its instruction sets as the system lists them, and the interpreter."""
    name, flags = platform.processor() or platform.machine(), set[str]()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = set(value.split())
    except OSError:
        flags = set()
    sets = " ".join(isa for isa in INSTRUCTION_SETS if isa in flags)
    lines = [
        f"machine: {name}, {os.cpu_count()} processors, {num_threads} threads used; {sets}",
        f"python: {platform.python_version()} on {platform.system()}",
    ]
    if hasattr(os, "getloadavg") and (load := os.getloadavg()[0]) > BUSY_LOAD * (os.cpu_count() or 1):
        lines.append(f"warning: the load average is {load:.1f}; on a busy machine these figures say little")
    return lines


def format_table(contenders: Sequence[Contender]) -> list[str]:
    """The medians, tokens a second, and the ratios of the first two lines to the last."""
    width = max(len(contender.name) for contender in contenders) + 2
    lines = ["tokens/s (median)".ljust(width + 8) + "".join(column.rjust(18) for column in COLUMNS)]
    for contender in contenders:
        cells = [contender.median(column) for column in COLUMNS]
        if all(cell is None for cell in cells):
            lines.append(f"{contender.name.ljust(width + 8)}  {contender.died}")
            continue
        lines.append(
            contender.name.ljust(width + 8)
            + "".join(("-" if cell is None else f"{cell:.1f}").rjust(18) for cell in cells)
        )
    *ours, peer = contenders
    if len(contenders) > 2 and peer.rates:
        for contender in ours:
            ratios = [_ratio(contender.median(column), peer.median(column)) for column in COLUMNS]
            lines.append(f"{contender.name} / peer".ljust(width + 8) + "".join(ratio.rjust(18) for ratio in ratios))
    return lines


def _ratio(ours: float | None, theirs: float | None) -> str:
    return "-" if ours is None or not theirs else f"{ours / theirs:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("model", help="a .gguf file that both poot and llama.cpp read")
    parser.add_argument("--threads", type=int, default=None, help="default: every processor this process may use")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96, help="tokens generated a row in a decode measurement")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter that has llama-cpp-python")
    options = parser.parse_args()
    num_threads = min(options.threads or processors(), processors())
    environment = {**environment_for(num_threads), "PYTHONPATH": str(HERE.parent)}
    sizes = ["--rows", str(max(ROWS)), "--max-seq", str(MAX_SEQ)]
    for line in describe_machine(num_threads):
        print(line)
    with ExitStack() as stack:
        engine_command = [sys.executable, str(HERE / "engine_worker.py"), options.model, *sizes]
        engine = stack.enter_context(Worker("engine", engine_command, environment=environment, num_threads=num_threads))
        ready = engine.ready()
        print(f"poot: {ready['version']}; {ready['system']}; {ready['num_threads']} threads")
        serve_command = [sys.executable, "-m", "poot", *sizes, options.model, "127.0.0.1:0"]
        server = stack.enter_context(HttpServer(serve_command, environment=environment, num_threads=num_threads))
        contenders = [
            worker_contender("poot, engine alone", engine),
            Contender(name="poot, over HTTP", prefill=server.prefill, decode=server.decode),
        ]
        if has_peer(options.peer_python):
            peer_command = [options.peer_python, str(HERE / "llama_cpp_worker.py"), options.model, *sizes]
            peer_command += ["--threads", str(num_threads)]
            peer = stack.enter_context(
                Worker("llama.cpp", peer_command, environment=environment, num_threads=num_threads)
            )
            contender = worker_contender("llama.cpp", peer)
            try:
                ready = peer.ready()
                print(f"peer: {ready['version']}; {ready['system'].strip()}")
            except WorkerDied as error:
                contender.died = str(error)
            contenders.append(contender)
        else:
            print(f"peer: llama-cpp-python is not installed for {options.peer_python}; --peer-python names another")
        for number in range(options.rounds + 1):
            for contender in contenders:
                contender.run_round(number, options.tokens)
                if number == 0:
                    contender.rates.clear()  # the first round warms caches and is not counted
        print(f"model: {Path(options.model).name}; {options.rounds} rounds, {options.tokens} tokens a row\n")
        for line in format_table(contenders):
            print(line)
        for contender in contenders:
            if contender.died is not None:
                print(f"{contender.name} is incomplete: {contender.died}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
