#!/usr/bin/env python3
"""Serving under load: `python benchmarks/serve.py MODEL.gguf [--peer-python PYTHON] [--rounds 3]`.

poot over HTTP beside llama-cpp-python's server on the same file and threads, where an interpreter has it, and poot with
`--draft-lookup` where the text repeats. One server is loaded at a time and rounds are interleaved, so that a machine
that slows down slows all of them. Tables: closed loops of 1 to 8 clients for prompts of three lengths, an open loop
with Poisson arrivals, prompts that share their beginning, and text that repeats. All requests are greedy and stream.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

# Run as a script, Python looks for modules in this folder alone.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.decode import describe_machine, has_peer, processors
from benchmarks.http_client import HttpServer, environment_for
from benchmarks.llama_cpp_server import LlamaCppServer
from benchmarks.serve_load import CompletionClient, Objective, Summary, Trial, closed_loop, open_loop, words

HERE = Path(__file__).resolve().parent
MAX_SEQ = 4096
ROWS = 4
CLIENTS = (1, 2, 4, 8)
PROMPT_WORDS = (32, 512, 2048)
GENERATED_TOKENS = 48
OBJECTIVE = Objective(ttft=2.0, gap=0.1)
"""A reader notices a pause of about a tenth of a second within a line, and turns away after a few seconds."""

LOOKUP = "3:8"
REPEATED_TOKENS = 96
SHARED_WORDS = 1000
OWN_WORDS = 16


@dataclass(frozen=True, slots=True)
class Contender:
    """One server: its name in the tables, and how to ask it."""

    name: str
    client: CompletionClient

    def complete(self, prompt: str) -> Trial:
        return self.client.complete(prompt, GENERATED_TOKENS)


Results = defaultdict[str, dict[str, Summary]]
"""Summaries over all rounds, by workload and contender."""


def note(results: Results, workload: str, contender: Contender, summary: Summary) -> None:
    results[workload].setdefault(contender.name, Summary()).add(summary)


def closed_loops(contenders: Sequence[Contender], results: Results, draw: random.Random) -> None:
    """Every prompt length at every number of clients, the prompts the same for all contenders."""
    for num_words in PROMPT_WORDS:
        for num_clients in CLIENTS:
            num_requests = max(2, num_clients) if num_words > 1000 else 2 * num_clients
            prompts = [words(draw, num_words) for _ in range(num_requests)]
            for contender in contenders:
                name = f"{num_words} words, {num_clients} client{'s' * (num_clients > 1)}"
                note(results, name, contender, closed_loop(contender.complete, prompts, num_clients))


def open_loops(contenders: Sequence[Contender], results: Results, draw: random.Random, rates: Sequence[float]) -> None:
    """Mixed prompts that arrive by themselves."""
    for rate in rates:
        prompts = [words(draw, draw.choice((32, 128, 512))) for _ in range(max(8, int(8 * rate)))]
        seed = draw.getrandbits(32)
        for contender in contenders:
            summary = open_loop(contender.complete, prompts, rate, random.Random(seed))
            note(results, f"open loop, {rate:g} requests/s", contender, summary)


def shared_prefixes(contenders: Sequence[Contender], results: Results, draw: random.Random) -> None:
    """A prompt never seen before, then others that begin as it does."""
    shared = words(draw, SHARED_WORDS)
    for contender in contenders:
        for name, count in (("cold", 1), ("shared prefix", 3)):
            prompts = [f"{shared} {words(draw, OWN_WORDS)}" for _ in range(count)]
            note(results, f"{name}, {SHARED_WORDS} words", contender, closed_loop(contender.complete, prompts, 1))


def repeats(contenders: Sequence[Contender], results: Results, draw: random.Random) -> None:
    """Text that goes on as it went before: a list of items that comes round again and again."""
    phrase = words(draw, 12)
    prompt = f"{phrase}. " * 12
    for contender in contenders:
        complete = partial(contender.client.complete, max_tokens=REPEATED_TOKENS)
        summary = closed_loop(complete, [prompt] * 2, 1)
        note(results, "repeat-heavy, 1 client", contender, summary)


def format_tables(results: Results, baseline: str) -> Iterator[str]:
    """A Markdown table of every workload; `baseline` is the contender that ratios are against."""
    yield "| workload | contender | tokens/s | ratio | TTFT p50 | gap p50 | gap p99 | good requests/s |"
    yield "|---|---|---|---|---|---|---|---|"
    for workload, summaries in results.items():
        base = summaries.get(baseline)
        for name, summary in summaries.items():
            if not summary.trials:
                yield f"| {workload} | {name} | failed |"
                continue
            ratio = (
                "" if base is None or not base.trials else f"{summary.tokens_per_second / base.tokens_per_second:.2f}"
            )
            failed = f", {summary.num_failed} failed" if summary.num_failed else ""
            yield (
                f"| {workload} | {name}{failed} | {summary.tokens_per_second:.1f} | {ratio} "
                f"| {1000 * summary.ttft_p50:.0f} ms | {1000 * summary.gap(0.5):.1f} ms "
                f"| {1000 * summary.gap(0.99):.1f} ms | {summary.goodput(OBJECTIVE):.2f} |"
            )


def prefill_rates(results: Results) -> Iterator[str]:
    """Prompt tokens a second up to the first token, of one client's longest prompts."""
    for name, summary in results[f"{PROMPT_WORDS[-1]} words, 1 client"].items():
        if summary.trials and all(trial.num_prompt_tokens for trial in summary.trials):
            rate = statistics.median(trial.num_prompt_tokens / trial.ttft for trial in summary.trials)
            yield f"prefill of {PROMPT_WORDS[-1]} words, {name}: {rate:.0f} tokens/s to the first token"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("model", help="a .gguf file that both poot and llama.cpp read")
    parser.add_argument("--threads", type=int, default=None, help="default: every processor this process may use")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rates", type=float, nargs="*", default=[1.0, 2.0], help="arrivals a second, open loop")
    parser.add_argument("--no-lookup", action="store_true", help="leave out poot with --draft-lookup")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter with llama-cpp-python[server]")
    options = parser.parse_args()
    num_threads = min(options.threads or processors(), processors())
    environment = {**environment_for(num_threads), "PYTHONPATH": str(HERE.parent)}
    for line in describe_machine(num_threads):
        print(line)
    with ExitStack() as stack:

        def poot(name: str, *flags: str) -> Contender:
            command = [sys.executable, "-m", "poot", "--rows", str(ROWS), "--max-seq", str(MAX_SEQ), *flags]
            command += [options.model, "127.0.0.1:0"]
            server = stack.enter_context(HttpServer(command, environment=environment, num_threads=num_threads))
            extra = {"ignore_eos": True, "stream_options": {"include_usage": True}}
            return Contender(name, CompletionClient(server.port, extra))

        ours = poot("poot")
        contenders = [ours]
        if has_peer(options.peer_python):
            peer = stack.enter_context(
                LlamaCppServer(
                    options.peer_python,
                    options.model,
                    max_seq=MAX_SEQ,
                    environment=environment,
                    num_threads=num_threads,
                )
            )
            contenders.append(Contender("llama.cpp", CompletionClient(peer.port)))
        lookup = None if options.no_lookup else poot("poot, lookup", "--draft-lookup", LOOKUP)
        results: Results = defaultdict(dict)
        for contender in [*contenders, *([] if lookup is None else [lookup])]:
            contender.complete(words(random.Random(0), 64))  # warms caches
        for number in range(options.rounds):
            draw = random.Random(number)
            closed_loops(contenders, results, draw)
            open_loops(contenders, results, draw, options.rates)
            shared_prefixes(contenders, results, draw)
            repeats([*contenders, *([] if lookup is None else [lookup])], results, draw)
        print(f"model: {Path(options.model).name}; {options.rounds} rounds, {GENERATED_TOKENS} tokens a request")
        print(f"good: first token within {OBJECTIVE.ttft:g} s, p99 gap within {1000 * OBJECTIVE.gap:g} ms\n")
        for line in format_tables(results, "llama.cpp" if len(contenders) > 1 else "poot"):
            print(line)
        print()
        for line in prefill_rates(results):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
