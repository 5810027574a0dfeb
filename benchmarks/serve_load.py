"""Load of a streamed completions endpoint, and what each request saw: when its tokens came.

Threads rather than an event loop: a client reads a few hundred lines a second, and a thread that waits costs nothing.
"""

from __future__ import annotations

import http.client
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

# Common words that are one token, space before them included, in the vocabularies of the models measured here.
WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education"
).split()


@dataclass(frozen=True, slots=True)
class Trial:
    """One request: its start, and when each chunk with text arrived, in seconds of one clock."""

    started: float
    arrivals: tuple[float, ...]
    num_prompt_tokens: int
    num_generated_tokens: int

    @property
    def ttft(self) -> float:
        return self.arrivals[0] - self.started

    @property
    def gaps(self) -> list[float]:
        """Seconds between neighbouring chunks."""
        return [after - before for before, after in zip(self.arrivals, self.arrivals[1:], strict=False)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """What a request must meet to count as good: seconds to the first token, and of its p99 gap."""

    ttft: float
    gap: float


@dataclass(kw_only=True)
class Summary:
    """What a set of trials adds up to."""

    trials: list[Trial] = field(default_factory=list)
    wall: float = 0.0
    num_failed: int = 0

    def add(self, other: Summary) -> None:
        self.trials += other.trials
        self.wall += other.wall
        self.num_failed += other.num_failed

    @property
    def tokens_per_second(self) -> float:
        return sum(trial.num_generated_tokens for trial in self.trials) / self.wall

    @property
    def ttft_p50(self) -> float:
        return statistics.median(trial.ttft for trial in self.trials)

    def gap(self, share: float) -> float:
        """The quantile `share` of all gaps, in seconds."""
        gaps = sorted(gap for trial in self.trials for gap in trial.gaps)
        return gaps[min(len(gaps) - 1, int(share * len(gaps)))] if gaps else 0.0

    def goodput(self, objective: Objective) -> float:
        """Requests a second that met the objective."""
        good = 0
        for trial in self.trials:
            gaps = sorted(trial.gaps) or [0.0]
            p99 = gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))]
            good += trial.ttft <= objective.ttft and p99 <= objective.gap
        return good / self.wall


def words(draw: random.Random, num_words: int) -> str:
    """A text of `num_words` random words, about as many tokens."""
    return " ".join(draw.choices(WORDS, k=num_words))


class CompletionClient:
    """Streams greedy completions from `port` of the loopback address.

    Args:
        extra: fields of the body that only this server knows.
    """

    def __init__(self, port: int, extra: dict[str, object] | None = None) -> None:
        self._port = port
        self._extra = extra or {}

    def complete(self, prompt: str, max_tokens: int) -> Trial:
        """One request on a connection of its own.

        Raises:
            RuntimeError: an answer other than 200, or an error in the stream.
        """
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True, **self._extra}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        started = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read(1000)!r}")
        arrivals: list[float] = []
        usage: dict[str, int] = {}
        while line := response.readline():
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(str(chunk["error"]))
            usage = chunk.get("usage") or usage
            if any(choice.get("text") for choice in chunk["choices"]):
                arrivals.append(time.perf_counter())
        connection.close()
        if not arrivals:
            raise RuntimeError("the answer holds no text")
        return Trial(
            started, tuple(arrivals), usage.get("prompt_tokens", 0), usage.get("completion_tokens", len(arrivals))
        )


def closed_loop(complete: Callable[[str], Trial], prompts: Sequence[str], num_clients: int) -> Summary:
    """`num_clients` clients that ask again as soon as they were answered, until the prompts are used up."""
    left = list(reversed(prompts))
    lock = threading.Lock()
    summary = Summary()

    def client() -> None:
        while True:
            with lock:
                if not left:
                    return
                prompt = left.pop()
            _run(complete, prompt, summary, lock)

    started = time.perf_counter()
    threads = [threading.Thread(target=client) for _ in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    summary.wall = time.perf_counter() - started
    return summary


def open_loop(
    complete: Callable[[str], Trial], prompts: Sequence[str], requests_per_second: float, draw: random.Random
) -> Summary:
    """Requests that arrive as a Poisson process, whether or not earlier ones were answered."""
    summary = Summary()
    lock = threading.Lock()
    threads = []
    started = time.perf_counter()
    due = started
    for prompt in prompts:
        due += draw.expovariate(requests_per_second)
        time.sleep(max(0.0, due - time.perf_counter()))
        thread = threading.Thread(target=_run, args=(complete, prompt, summary, lock))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()
    summary.wall = time.perf_counter() - started
    return summary


def _run(complete: Callable[[str], Trial], prompt: str, summary: Summary, lock: threading.Lock) -> None:
    try:
        trial = complete(prompt)
    except (RuntimeError, OSError, http.client.HTTPException):
        with lock:
            summary.num_failed += 1
    else:
        with lock:
            summary.trials.append(trial)
