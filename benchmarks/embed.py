#!/usr/bin/env python3
"""Embedding speed: `python benchmarks/embed.py MODEL [--peer-python PYTHON]`, MODEL a sentence-transformers directory.

Three contenders on the same model, threads and texts: poot over HTTP, sentence-transformers inside its own process (no
HTTP), and infinity-emb over HTTP where an interpreter has it (both are peers, not dependencies). Each runs in a process
of its own; rounds are interleaved, so that a machine that slows down slows all of them; tables show medians over the
rounds. Texts are random words, new in every round.
"""

from __future__ import annotations

import argparse
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

from benchmarks.decode import describe_machine, processors
from benchmarks.embed_client import EmbeddingClient
from benchmarks.http_client import HttpServer, environment_for
from benchmarks.infinity_server import InfinityServer
from benchmarks.words import single_token_words
from benchmarks.worker import Worker, WorkerDied

HERE = Path(__file__).resolve().parent
MAX_SEQ = 512
SPECIAL_TOKENS = 2  # [CLS] and [SEP] around every text
CONCURRENCY = (1, 8, 64)
MIXED = (4, 240)
"""Tokens of the shortest and the longest text of the mixed set, drawn evenly between them."""


@dataclass(frozen=True, slots=True)
class TextSet:
    """Texts of one table column: `shortest` to `longest` tokens each, special tokens included."""

    name: str
    shortest: int
    longest: int
    num_texts: int

    def draw(self, words: Sequence[str], draw: random.Random) -> list[str]:
        """New texts of exactly so many tokens."""
        lengths = [draw.randint(self.shortest, self.longest) - SPECIAL_TOKENS for _ in range(self.num_texts)]
        return [" ".join(draw.choices(words, k=length)) for length in lengths]

    @property
    def mean_tokens(self) -> float:
        return (self.shortest + self.longest) / 2


# As many texts as make a measurement of about a second each on two cores.
SETS = (
    TextSet("8 tokens", 8, 8, 512),
    TextSet("64 tokens", 64, 64, 128),
    TextSet("256 tokens", 256, 256, 32),
    TextSet("mixed", *MIXED, 64),
)


@dataclass(kw_only=True)
class Line:
    """One line of the table: seconds that a list of texts takes, and what was measured, texts a second by set."""

    name: str
    seconds: Callable[[list[str]], float]
    rates: dict[str, list[float]] = field(default_factory=dict)
    died: str | None = None

    def measure(self, text_set: TextSet, texts: list[str]) -> None:
        """Measures one set once. A line whose contender died is left out from then on."""
        if self.died is not None:
            return
        try:
            self.rates.setdefault(text_set.name, []).append(len(texts) / self.seconds(texts))
        except (WorkerDied, OSError) as error:
            self.died = str(error)

    def median(self, text_set: TextSet) -> float | None:
        rates = self.rates.get(text_set.name)
        return statistics.median(rates) if rates else None


def format_table(lines: Sequence[Line], baseline: Line) -> list[str]:
    """A Markdown table: texts a second, tokens a second, and the ratio to `baseline`."""
    rows = ["| texts/s (tokens/s) | " + " | ".join(text_set.name for text_set in SETS) + " |"]
    rows.append("|---" * (len(SETS) + 1) + "|")
    for line in lines:
        cells = []
        for text_set in SETS:
            rate, base = line.median(text_set), baseline.median(text_set)
            if rate is None:
                cells.append(line.died or "-")
                continue
            ratio = "" if line is baseline or not base else f", {rate / base:.2f}x"
            cells.append(f"{rate:.1f} ({rate * text_set.mean_tokens:.0f}{ratio})")
        rows.append(f"| {line.name} | " + " | ".join(cells) + " |")
    return rows


def has_module(python: str, name: str) -> bool:
    check = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run([python, "-c", check], check=False).returncode == 0


def worker_lines(worker: Worker) -> list[Line]:
    """sentence-transformers as it is used: a whole list at once, and one text after the other."""
    return [
        Line(
            name="sentence-transformers, in process, batches of 32",
            seconds=lambda texts: worker.ask({"texts": texts, "batch_size": 32}, "seconds"),
        ),
        Line(
            name="sentence-transformers, in process, one by one",
            seconds=lambda texts: worker.ask({"texts": texts, "batch_size": 1}, "seconds"),
        ),
    ]


def client_lines(name: str, client: EmbeddingClient) -> list[Line]:
    """One text a request at several levels of concurrency, and 32 texts a request."""

    def line(label: str, concurrency: int, texts_per_request: int) -> Line:
        return Line(
            name=f"{name}, {label}", seconds=lambda texts: client.seconds(texts, concurrency, texts_per_request)
        )

    singles = [line(f"{clients} client{'s' if clients > 1 else ''}", clients, 1) for clients in CONCURRENCY]
    return [*singles, line("2 clients, 32 texts a request", 2, 32)]


def latency(client: EmbeddingClient, worker: Worker, words: Sequence[str], rounds: int) -> str:
    """The p50 of one short text over HTTP against its bare forward pass in sentence-transformers' own model."""
    draw = random.Random(1)
    over_http: list[float] = []
    bare: list[float] = []
    for _ in range(rounds):
        texts = SETS[0].draw(words, draw)[:50]
        over_http += client.latencies(texts)
        bare += worker.ask({"forward": texts}, "seconds")
    ours, theirs = statistics.median(over_http), statistics.median(bare)
    return (
        f"one text of {SETS[0].name}, p50: {1000 * ours:.2f} ms over HTTP, "
        f"{1000 * theirs:.2f} ms bare forward pass in torch; ratio {ours / theirs:.2f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("model", type=Path, help="a sentence-transformers directory")
    parser.add_argument("--threads", type=int, default=None, help="default: every processor this process may use")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--st-python", default=sys.executable, help="an interpreter that has sentence-transformers")
    parser.add_argument("--peer-python", default=None, help="an interpreter that has infinity-emb")
    options = parser.parse_args()
    num_threads = min(options.threads or processors(), processors())
    environment = {**environment_for(num_threads), "PYTHONPATH": str(HERE.parent), "HF_HUB_OFFLINE": "1"}
    for text in describe_machine(num_threads):
        print(text)
    words = single_token_words(options.model)
    with ExitStack() as stack:
        st_command = [options.st_python, str(HERE / "sentence_transformers_worker.py"), str(options.model)]
        worker = stack.enter_context(
            Worker("sentence-transformers", st_command, environment=environment, num_threads=num_threads)
        )
        print(f"peer: {worker.ready()['version']}")
        poot_command = [sys.executable, "-m", "poot", "--max-seq", str(MAX_SEQ), str(options.model), "127.0.0.1:0"]
        server = stack.enter_context(HttpServer(poot_command, environment=environment, num_threads=num_threads))
        client = EmbeddingClient(server.port, "/v1/embeddings", options.model.name)
        baseline, *others = worker_lines(worker)
        lines = [*client_lines("poot over HTTP", client), baseline, *others]
        if options.peer_python and has_module(options.peer_python, "infinity_emb"):
            infinity = stack.enter_context(
                InfinityServer(options.peer_python, options.model, environment=environment, num_threads=num_threads)
            )
            lines += client_lines("infinity-emb over HTTP", infinity.client)
        for number in range(options.rounds + 1):
            draw = random.Random(number)
            for text_set in SETS:
                texts = text_set.draw(words, draw)
                for line in lines:
                    line.measure(text_set, texts)
            if number == 0:
                for line in lines:
                    line.rates.clear()  # the first round warms caches and is not counted
        print(f"model: {options.model.name}; {options.rounds} rounds, medians; ratios to the first peer line\n")
        for row in format_table(lines, baseline):
            print(row)
        print()
        print(latency(client, worker, words, options.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
