"""Encoding on the device task: shared passes, order, cancellation, failures, draining."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import numpy as np
import pytest
from anyio import wait_all_tasks_blocked

from poot.devices.base import FloatArray
from poot.devices.encode import EncodeStep, Pooling
from poot.engine.device_thread import Job
from poot.engine.encode_runner import EncodeRunner
from poot.engine.encoding import EncodeProfile, EncodeText
from poot.engine.engine import Engine
from poot.errors import Draining, EngineError
from poot.metrics import Metrics
from tests.fakes.engine_info import fake_info
from tests.fakes.tokenizer import byte_tokenizer

pytestmark = pytest.mark.anyio

T = TypeVar("T")

BAD_TOKEN = 99
BROKEN_TOKEN = 98


class Gate:
    """An executor that lets one call through each time it is opened."""

    def __init__(self) -> None:
        self.is_open = True
        self._opened = anyio.Event()

    def open(self) -> None:
        self._opened.set()

    def start(self, function: Callable[[], T]) -> Job[T]:
        raise AssertionError("a pass is waited for")

    async def call(self, function: Callable[[], T]) -> T:
        await anyio.lowlevel.checkpoint()
        if not self.is_open:
            with anyio.CancelScope(shield=True):
                await self._opened.wait()
            self._opened = anyio.Event()
        return function()


class SumProgram:
    """A text's vector is (sum of its token ids, its length); some token ids go wrong."""

    def __init__(self) -> None:
        self.passes: list[int] = []

    def launch(self, step: EncodeStep) -> SumProgram:
        self.passes.append(step.num_texts)
        if BROKEN_TOKEN in step.token_ids:
            raise RuntimeError("the device broke")
        texts = np.split(step.token_ids, step.text_starts[1:-1])
        self._result = np.array(
            [[np.nan if BAD_TOKEN in text else text.sum(), len(text)] for text in texts], np.float32
        )
        return self

    def vectors(self) -> FloatArray:
        return self._result


class FakeTextEncoder:
    """Only the profile is looked at here."""

    profile = EncodeProfile(embeds=True, dim=2, max_tokens=16, pooling=Pooling.MEAN)


class Harness:
    def __init__(self) -> None:
        self.program, self.gate, self.metrics = SumProgram(), Gate(), Metrics()
        self.engine = Engine(
            model=fake_info(rows=4, max_seq=16, vocab_size=100, task="embed"),
            tokenizer=byte_tokenizer(),
            chat=None,
            program=None,
            executor=self.gate,
            token_budget=4,
            mixed_token_budget=4,
            metrics=self.metrics,
            encode_runner=EncodeRunner(
                text_encoder=FakeTextEncoder(),  # type: ignore[arg-type]  # has no more than the profile
                program=self.program,
                max_texts=4,
                token_budget=16,
                executor=self.gate,
                metrics=self.metrics,
            ),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.engine.run)
            yield
            tasks.cancel_scope.cancel()

    async def encode(self, *texts: tuple[int, ...]) -> list[list[float]]:
        made = [EncodeText(np.array(text)) for text in texts]
        vectors: list[list[float]] = (await self.engine.encode(made, Pooling.MEAN)).tolist()
        return vectors

    def waiting(self) -> float:
        value = self.metrics.registry.get_sample_value("poot_encode_texts_waiting")
        assert value is not None
        return value


async def test_vectors_come_in_the_order_of_the_texts() -> None:
    harness = Harness()
    async with harness.running():
        texts = [(1,) * (1 + index % 5) for index in range(11)]
        assert await harness.encode(*texts) == [[len(text), len(text)] for text in texts]
    assert sum(harness.program.passes) == 11
    assert max(harness.program.passes) <= 4
    assert harness.waiting() == 0


async def test_requests_that_wait_together_share_a_pass() -> None:
    harness = Harness()
    harness.gate.is_open = False
    results: list[list[list[float]]] = []

    async def ask(*texts: tuple[int, ...]) -> None:
        results.append(await harness.encode(*texts))

    async with harness.running(), anyio.create_task_group() as tasks:
        tasks.start_soon(ask, (1,))
        await wait_all_tasks_blocked()
        tasks.start_soon(ask, (2,))
        tasks.start_soon(ask, (3, 3))
        await wait_all_tasks_blocked()
        assert harness.waiting() == 2
        for _ in range(2):
            harness.gate.open()
            await wait_all_tasks_blocked()
    assert harness.program.passes == [1, 2]
    assert sorted(results) == [[[1, 1]], [[2, 1]], [[6, 2]]]


async def test_who_leaves_takes_only_its_own_texts_along() -> None:
    harness = Harness()
    harness.gate.is_open = False
    results = []

    async def ask(*texts: tuple[int, ...]) -> None:
        results.append(await harness.encode(*texts))

    async with harness.running(), anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as leaving:
            leaving.start_soon(ask, *[(1,) * 8] * 6)
            await wait_all_tasks_blocked()  # two of its texts are in a pass
            tasks.start_soon(ask, (5,))
            await wait_all_tasks_blocked()
            leaving.cancel_scope.cancel()
        assert harness.waiting() == 1
        for _ in range(2):
            harness.gate.open()
            await wait_all_tasks_blocked()
    assert harness.program.passes == [2, 1]
    assert results == [[[5, 1]]]


async def test_a_vector_that_is_not_finite_fails_its_request_alone() -> None:
    harness = Harness()
    harness.gate.is_open = False
    results: list[object] = []

    async def ask(*texts: tuple[int, ...]) -> None:
        try:
            results.append(await harness.encode(*texts))
        except EngineError as error:
            results.append(error.message)

    async with harness.running(), anyio.create_task_group() as tasks:
        tasks.start_soon(ask, (7,))
        await wait_all_tasks_blocked()
        tasks.start_soon(ask, (BAD_TOKEN,), (1,))
        tasks.start_soon(ask, (2,))
        await wait_all_tasks_blocked()
        for _ in range(2):
            harness.gate.open()
            await wait_all_tasks_blocked()
    assert [[7, 1]] in results
    assert [[2, 1]] in results
    assert "the model gave no valid vector for this request" in results
    assert harness.waiting() == 0


async def test_a_pass_that_breaks_fails_its_requests_and_the_next_pass_runs() -> None:
    harness = Harness()
    async with harness.running():
        with pytest.raises(EngineError, match="the engine failed"):
            await harness.encode((BROKEN_TOKEN,), *[(1,) * 16] * 9)
        assert harness.waiting() == 0
        assert await harness.encode((3,)) == [[3, 1]]


async def test_draining_refuses_new_texts_and_an_abort_ends_those_that_wait() -> None:
    harness = Harness()
    harness.gate.is_open = False
    refused: list[str] = []

    async def ask() -> None:
        with pytest.raises(Draining) as caught:
            await harness.encode(*[(1,) * 16] * 3)
        refused.append(caught.value.message)

    async with harness.running(), anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await wait_all_tasks_blocked()
        harness.engine.drain()
        with pytest.raises(Draining):
            await harness.encode((1,))
        harness.engine.abort("too late")
        await wait_all_tasks_blocked()
        assert refused == ["too late"]
        assert harness.waiting() == 0
        harness.gate.open()


async def test_passes_and_tokens_are_counted() -> None:
    harness = Harness()
    async with harness.running():
        await harness.encode((1, 2, 3), (4,))
    values = harness.metrics.registry.get_sample_value
    assert values("poot_encode_passes_total") == 1
    assert values("poot_encode_texts_total") == 2
    assert values("poot_encode_tokens_total") == 4
