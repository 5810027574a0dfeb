"""The engine's public face: token ids in, events out. With the device thread and
the encode runner, the only async code of the package.

One task, the device task, owns scheduler and device. Everyone else talks to it through two queues that it empties
between steps: sequences that arrived, and sequences that are to be released. Both sides run on the event loop, so a
plain deque and one event are enough.

    open ──arrivals──▶ ┌ admit ─ compose ─ build ─▶ device thread ─▶ commit ─ deliver ┐ ──events──▶ receive channel
    leave ─releases──▶ └──────────────────────────── loop ─────────────────────────────┘

One step ahead, the next step is composed and handed to the device before the one in flight is waited for: the host's
part of a step then costs nothing as long as it is shorter than the device's. What is drawn stays the same. A row whose
text turns out to have ended is computed once more, for nothing.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable
from collections.abc import Sequence as SequenceOf
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio
from anyio.abc import TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream

from poot.devices.base import KV_BLOCK_SIZE, FloatArray, Pending, Program, StepResult
from poot.devices.encode import Pooling
from poot.engine.device_thread import Job, StepExecutor
from poot.engine.encode_runner import EncodeRunner
from poot.engine.encoding import EncodeText, TextEncoder
from poot.engine.generation import Clock, Generation
from poot.engine.kv.allocator import BlockAllocator
from poot.engine.plan import Plan
from poot.engine.sampling.defaults import SamplingDefaults
from poot.engine.scheduler import Outcome, Scheduler, StepPlan
from poot.engine.sequence import (
    Event,
    Failed,
    Finished,
    GenerationRequest,
    Opened,
    Sequence,
)
from poot.engine.speculate.drafter import Drafter
from poot.engine.step import build_step, prompt_scores
from poot.engine.text import ChatTemplate, Tokenizer
from poot.errors import Draining
from poot.metrics import Metrics

logger = logging.getLogger("poot.engine")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineInfo:
    """What is served, as settled at startup. Sizes in bytes, `created` in Unix seconds.

    `plan` is the fit that rows, max_seq and terms came from; None where nothing was fitted, as for a fake program.
    """

    model_id: str
    task: str
    backend: str
    device: str
    rows: int
    max_seq: int
    vocab_size: int
    context_limit: int
    created: int
    weight_bytes: int
    kv_bytes: int
    terms: dict[str, int]
    plan: Plan | None = None
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A step that the device thread has: its plan, the job that launches it, and when it was handed over."""

    plan: StepPlan
    job: Job[tuple[StepPlan, Pending]]
    started: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineStatistics:
    """What the engine holds right now; all of it is zero when nothing is being served."""

    rows_held: int
    kv_blocks_held: int
    waiting: int


class Engine:
    """Runs sequences on one program.

    Args:
        model: what is served.
        tokenizer, chat: the model's text side; `chat` is None for a model without a template.
        program: the recorded step, for up to `model.rows` rows and `token_budget` tokens; None for a model that only
            encodes.
        executor: where the blocking half of a step runs.
        token_budget, mixed_token_budget: most tokens of a step, without and with decoding rows in it.
        encode_runner: runs encode passes between steps; None for a model that only generates.
        max_draft_tokens: most tokens proposed for a row in one step.
        make_drafter: what proposes them, over the pool's bookkeeping; None where nothing is to be proposed.
        runs_ahead: keep the device one step ahead of the host wherever the next step does not depend on the tokens in
            flight (proposals and penalties do), and no text waits to be encoded.
    """

    def __init__(
        self,
        *,
        model: EngineInfo,
        tokenizer: Tokenizer,
        chat: ChatTemplate | None,
        program: Program | None,
        executor: StepExecutor,
        token_budget: int,
        mixed_token_budget: int,
        metrics: Metrics,
        encode_runner: EncodeRunner | None = None,
        max_draft_tokens: int = 0,
        make_drafter: Callable[[BlockAllocator], Drafter] | None = None,
        runs_ahead: bool = False,
    ) -> None:
        self.model = model
        self._runs_ahead = runs_ahead
        self.tokenizer = tokenizer
        self.chat = chat
        self._encode_runner = encode_runner
        self._program = program
        self._executor = executor
        self._metrics = metrics
        self._max_blocks = -(-model.max_seq // KV_BLOCK_SIZE)
        self._allocator = BlockAllocator(model.rows * self._max_blocks)
        self._scheduler = Scheduler(
            num_rows=model.rows,
            block_size=KV_BLOCK_SIZE,
            token_budget=token_budget,
            mixed_token_budget=mixed_token_budget,
            allocator=self._allocator,
            max_draft_tokens=max_draft_tokens,
        )
        self._drafter = None if make_drafter is None else make_drafter(self._allocator)
        assert (self._drafter is None) == (max_draft_tokens == 0)
        self._generations: dict[Sequence, Generation] = {}
        self._arrivals: deque[Generation] = deque()
        self._releases: deque[Generation] = deque()
        self._wake = anyio.Event()
        self._is_draining = False
        self._last_finished = -math.inf

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    def drain(self) -> None:
        """Refuses every `open` from now on; sequences already open run on."""
        self._is_draining = True

    def abort(self, message: str) -> None:
        """Ends every open sequence with a `Failed` event that says `message`. For the drain deadline."""
        for generation in [*self._generations.values(), *self._arrivals]:
            self._fail(generation, message, draining=True)
        if self._encode_runner is not None:
            self._encode_runner.abort(message)

    @property
    def generates(self) -> bool:
        """Whether `open` may be called: the model is a language model."""
        return self._program is not None

    @property
    def encoder(self) -> TextEncoder | None:
        """The text side of embeddings and scores; None where the model gives neither (then `encode` is not called)."""
        return None if self._encode_runner is None else self._encode_runner.text_encoder

    async def encode(self, texts: SequenceOf[EncodeText], pooling: Pooling) -> FloatArray:
        """A vector for each text, f32 `[num_texts, dim]` in their order: an embedding, or one logit.

        Texts of all requests that wait at the same time share passes. Cancelled, texts that no pass has taken are
        dropped, and a pass in flight runs on without them.

        Args:
            texts: each of at most `encoder.profile.max_tokens` tokens.

        Raises:
            Draining: the engine takes no new requests, or ended this one at the drain deadline.
            EngineError: a pass failed, or a vector is not finite.
        """
        assert self._encode_runner is not None
        if self._is_draining:
            raise Draining("the server is shutting down and takes no new requests")
        return await self._encode_runner.encode(texts, pooling, self._wake_up)

    def _wake_up(self) -> None:
        self._wake.set()

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            rows_held=self._scheduler.num_running,
            kv_blocks_held=self._allocator.num_held,
            waiting=self._scheduler.num_waiting
            + len(self._arrivals)
            + (0 if self._encode_runner is None else self._encode_runner.num_waiting_texts),
        )

    @asynccontextmanager
    async def open(self, request: GenerationRequest) -> AsyncGenerator[MemoryObjectReceiveStream[Event]]:
        """A channel with the events of one sequence: `Opened` when it gets a row, deltas, `Finished` or `Failed`.

        Leaving the block, in whatever way, ends the sequence: its row and blocks are free within one step.

        Raises:
            Draining: the engine takes no new sequences.
        """
        if self._is_draining:
            raise Draining("the server is shutting down and takes no new requests")
        num_prompt_tokens = len(request.prompt_ids)
        assert 1 <= num_prompt_tokens < self.model.max_seq
        max_total_tokens = min(num_prompt_tokens + max(1, request.max_tokens), self.model.max_seq)
        # Room for every event the sequence can cause (Opened, PromptScored, a Delta a token and one to flush, the end),
        # so that the device task never waits for a slow consumer. An event is small; max_seq bounds their number.
        send, receive = anyio.create_memory_object_stream[Event](max_total_tokens - num_prompt_tokens + 5)
        generation = Generation(
            sequence=Sequence(
                request=request,
                token_ids=list(request.prompt_ids),
                num_prompt_tokens=num_prompt_tokens,
                max_total_tokens=max_total_tokens,
                stop_ids=request.stop_ids(self.tokenizer.eos_ids),
            ),
            tokenizer=self.tokenizer,
            send=send,
            clock=Clock(anyio.current_time()),
        )
        self._arrivals.append(generation)
        self._wake.set()
        try:
            yield receive
        finally:
            receive.close()
            if not generation.is_over:
                generation.is_over = True
                self._metrics.cancelled.inc()
                generation.send.close()
            self._releases.append(generation)
            self._wake.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """The device task. Runs until cancelled; a step in flight is finished first."""
        task_status.started()
        in_flight: _InFlight | None = None
        while True:
            self._take_commands()
            if in_flight is None:
                in_flight = self._launch_next()
            following = self._launch_next() if in_flight is not None and self._may_run_ahead() else None
            if in_flight is not None:
                await self._finish(in_flight)
            # One pass after each step: generation and embeddings take turns while both have work.
            has_encoded = following is None and self._encode_runner is not None and await self._encode_runner.run_pass()
            if in_flight is None and not has_encoded:
                await self._wake.wait()
                self._wake = anyio.Event()
            in_flight = following

    def _may_run_ahead(self) -> bool:
        is_encoding = self._encode_runner is not None and self._encode_runner.num_waiting_texts > 0
        return self._runs_ahead and not is_encoding and self._scheduler.can_compose_ahead()

    def _take_commands(self) -> None:
        while self._arrivals:
            generation = self._arrivals.popleft()
            if not generation.is_over:
                self._generations[generation.sequence] = generation
                self._scheduler.add(generation.sequence)
        while self._releases:
            self._forget(self._releases.popleft())
        now = anyio.current_time()
        for sequence in self._scheduler.admit():
            generation = self._generations[sequence]
            generation.clock.opened = now
            self._metrics.queue_wait_seconds.observe(now - generation.clock.arrived)
            self._metrics.prompt_tokens.inc(sequence.num_prompt_tokens)
            generation.send.send_nowait(Opened())
        self._publish()

    def _forget(self, generation: Generation) -> None:
        if self._generations.pop(generation.sequence, None) is not None:
            self._scheduler.remove(generation.sequence)

    def _publish(self) -> None:
        self._metrics.rows_held.set(self._scheduler.num_running)
        self._metrics.kv_blocks_held.set(self._allocator.num_held)
        self._metrics.kv_blocks_cached.set(self._allocator.num_kept)

    def _launch_next(self) -> _InFlight | None:
        """Composes a step and hands it to the device thread; None where there is nothing to compute."""
        num_cached = self._scheduler.num_cached_tokens
        plan = self._scheduler.compose()
        self._metrics.prefix_cache_hit_tokens.inc(self._scheduler.num_cached_tokens - num_cached)
        if plan is None:
            return None
        started = anyio.current_time()
        program = self._program
        assert program is not None
        if self._drafter is not None:
            return _InFlight(plan, self._executor.start(lambda: self._propose_and_launch(plan)), started)
        try:
            step = build_step(plan, max_blocks=self._max_blocks)
        except Exception:
            self._fail_step(plan)
            return None
        if self._runs_ahead:
            self._scheduler.assume(plan)
        return _InFlight(plan, self._executor.start(lambda: (plan, program.launch(step))), started)

    def _propose_and_launch(self, plan: StepPlan) -> tuple[StepPlan, Pending]:
        """The plan with what was proposed, and its step in flight. Runs on the device thread."""
        assert self._program is not None
        assert self._drafter is not None
        if asking := [chunk for chunk in plan.chunks if chunk.max_draft_tokens]:
            drafts = dict(zip(asking, self._drafter.propose(asking), strict=True))
            plan = StepPlan(
                tuple(replace(chunk, draft=draft) if (draft := drafts.get(chunk)) else chunk for chunk in plan.chunks)
            )
        return plan, self._program.launch(build_step(plan, max_blocks=self._max_blocks))

    async def _finish(self, in_flight: _InFlight) -> None:
        """Waits for a step, commits and delivers it. Fails its sequences if the device did."""
        assert self._program is not None
        try:
            plan, pending = await in_flight.job.result()
            result = pending.tokens() if self._program.launch_computes else await self._executor.call(pending.tokens)
        except Exception:
            self._fail_step(in_flight.plan)
            return
        now = anyio.current_time()
        self._metrics.steps.inc()
        self._metrics.step_wall_seconds.inc(now - max(in_flight.started, self._last_finished))
        self._last_finished = now
        outcomes = self._scheduler.commit(plan, result.token_ids)
        for sequence, first, scores in prompt_scores(plan, result.scores):
            generation = self._generations.get(sequence)
            if generation is not None and not generation.is_over:
                generation.accept_prompt(first, scores)
        for outcome in outcomes:
            self._deliver(outcome, result, now)
        self._publish()

    def _fail_step(self, plan: StepPlan) -> None:
        """Our own bug, or the device's, which is being handled: it ends the sequences of this step and no other."""
        logger.exception("a step of %d tokens failed", plan.num_tokens)
        for chunk in plan.chunks:
            if (generation := self._generations.get(chunk.sequence)) is not None:
                self._fail(generation, "the engine failed on this request", draining=False)

    def _deliver(self, outcome: Outcome, result: StepResult, now: float) -> None:
        generation = self._generations[outcome.chunk.sequence]
        if outcome.chunk.draft:
            self._metrics.count_draft(len(outcome.chunk.draft), outcome.num_accepted)
        for sample in outcome.samples:
            if generation.is_over:  # it left while the step ran, or ended with an earlier one of these tokens
                return
            if sample in result.failed:
                logger.error("a sequence's logits were not finite, or every token was banned")
                self._fail(generation, "the model gave no valid token for this request", draining=False)
                return
            self._metrics.generated_tokens.inc()
            clock = generation.clock
            if clock.last_token is None:
                clock.first_token = now
                self._metrics.time_to_first_token_seconds.observe(now - clock.arrived)
            else:
                self._metrics.inter_token_seconds.observe(now - clock.last_token)
            clock.last_token = now
            for event in generation.accept(result.token_ids[sample], result.logprobs[sample]):
                generation.send.send_nowait(event)
                if isinstance(event, Finished):
                    generation.send.close()
                    self._forget(generation)

    def _fail(self, generation: Generation, message: str, *, draining: bool) -> None:
        if generation.is_over:
            return
        generation.is_over = True
        generation.send.send_nowait(Failed(message, draining))
        generation.send.close()
        self._releases.append(generation)
        self._wake.set()
