"""The composition root: load, plan, prepare, open, serve, drain.

The only module that sees every part. It chooses the event loop, owns the root task group, and fixes the order in which
things start and stop: the engine starts before the listener and outlives every connection.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator

import anyio
import anyio.abc

from poot.api.routes import Api
from poot.config import Address, Config, Draft, DraftLookup, DraftMtp, FdAddress, TcpAddress, TimingConfig
from poot.devices.base import KV_BLOCK_SIZE, Device
from poot.devices.select import select_device
from poot.engine.checkpoint import Checkpoint, open_checkpoint
from poot.engine.device_thread import DeviceThread
from poot.engine.encode_runner import EncodeRunner
from poot.engine.engine import Engine, EngineInfo
from poot.engine.kv.allocator import BlockAllocator
from poot.engine.models.served import ServedModel, load_served
from poot.engine.models.task import Task, read_task
from poot.engine.runner import Prepared, prepare
from poot.engine.sampling.defaults import read_sampling_defaults
from poot.engine.speculate.drafter import Drafter, LookupDrafter
from poot.engine.speculate.loading import LoadedDraft, load_draft, refuse_mtp
from poot.engine.speculate.model import ModelDrafter
from poot.engine.text import ChatTemplate, Tokenizer, load_tokenizer, select_template
from poot.errors import ConfigError, StartupError
from poot.metrics import Metrics
from poot.net.listener import Server
from poot.progress import LoadProgress

logger = logging.getLogger("poot.server")

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]  # the module where it exists

try:
    import uvloop  # noqa: F401 - its presence decides the loop
except ImportError:
    HAS_UVLOOP = False
else:
    HAS_UVLOOP = True


def run(config: Config) -> int:
    """Serves until a signal. Returns the exit status; a second signal ends the process at once with 128 + its number.

    Raises:
        ConfigError, StartupError: before the listener opens.
    """
    raise_descriptor_limit()
    served = load(config)
    refusal: StartupError | None = None
    try:
        return anyio.run(serve, config, served, backend="asyncio", backend_options={"use_uvloop": HAS_UVLOOP})
    except* StartupError as group:  # such as an address in use, out of the task groups that were already running
        refusal = next(_leaves(group))
    assert refusal is not None
    raise refusal


def raise_descriptor_limit() -> None:
    """Raises the soft limit of open files to the hard one.

    Shells and systemd start processes with 1024, which is less than --max-connections; programs that cannot handle
    more (those that use select) are why the soft limit is low, and poot is not one of them.
    """
    if resource is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:  # macOS reports an unlimited hard limit that it then does not accept
        logger.info("the limit of open files stays as it is: %s", error)


def _leaves(group: BaseExceptionGroup[StartupError]) -> Iterator[StartupError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


class Served:
    """Everything that loading made: a model ready to run, and its text side."""

    def __init__(
        self,
        *,
        checkpoint: Checkpoint,
        device: Device,
        model: ServedModel,
        prepared: Prepared,
        tokenizer: Tokenizer,
        chat: ChatTemplate | None,
        draft: Draft | None = None,
        timing: TimingConfig | None = None,
    ) -> None:
        self._draft = draft
        self._timing = timing or TimingConfig()
        self.prepared = prepared
        self.tokenizer = tokenizer
        self.chat = chat
        self.device = device
        self.text_encoder = model.text_encoder(prepared.plan.max_seq)
        self.info = EngineInfo(
            model_id=model_id(checkpoint),
            task=model.task.value,
            backend=device.name,
            device=device.description,
            rows=prepared.plan.num_rows,
            max_seq=prepared.plan.max_seq,
            vocab_size=model.vocab_size,
            context_limit=model.model_limit,
            created=int(time.time()),
            weight_bytes=prepared.plan.terms["weights"],
            kv_bytes=prepared.kv_bytes,
            terms=dict(prepared.plan.terms),
            plan=prepared.plan,
            sampling_defaults=read_sampling_defaults(checkpoint),
        )

    def engine(self, executor: DeviceThread, metrics: Metrics) -> Engine:
        """An engine over the prepared programs; `executor` runs its steps and passes.

        Device timing, where it was asked for, begins anew here, so that no rehearsal is ever in it.
        """
        if self._timing.enabled:
            metrics.device_timing = self.device.time_steps(self._timing).snapshot
        encode = self.prepared.encode
        return Engine(
            model=self.info,
            tokenizer=self.tokenizer,
            chat=self.chat,
            program=self.prepared.program,
            executor=executor,
            token_budget=self.prepared.token_budget,
            mixed_token_budget=self.prepared.mixed_token_budget,
            metrics=metrics,
            encode_runner=EncodeRunner(
                text_encoder=self.text_encoder,
                program=encode.program,
                max_texts=encode.max_texts,
                token_budget=encode.token_budget,
                executor=executor,
                metrics=metrics,
            ),
            max_draft_tokens=self.prepared.max_draft_tokens,
            make_drafter=None if self._draft is None else self._make_drafter,
        )

    def _make_drafter(self, allocator: BlockAllocator) -> Drafter:
        if isinstance(self._draft, DraftLookup):
            return LookupDrafter(self._draft.ngram)
        draft = self.prepared.draft
        assert draft is not None
        return ModelDrafter(
            draft.program,
            allocator=allocator,
            vocab_size=draft.vocab_size,
            token_budget=draft.token_budget,
            max_blocks=-(-self.info.max_seq // KV_BLOCK_SIZE),
        )


def model_id(checkpoint: Checkpoint) -> str:
    """The name the model is served under: the file's name without .gguf, or the directory's name."""
    path = checkpoint.path.resolve()
    return path.stem if path.suffix == ".gguf" else path.name


def load(config: Config) -> Served:
    """Opens the device and the model file, fits the workload and rehearses it. Blocks; no event loop runs yet.

    The work runs on a thread of its own that ends with it. OpenMP keeps a team of threads for every thread that ever
    computed, and libgomp cuts the spinning of all of them short once there are more than cores; with a team left behind
    by the main thread, every step on the device thread took 20 ms where it takes 13.

    Raises:
        DeviceError, CheckpointError, CapacityError, NotAvailableError, ConfigError: one typed line each.
    """
    outcome: list[Served | BaseException] = []

    def work() -> None:
        try:
            outcome.append(_load(config))
        except BaseException as error:
            outcome.append(error)

    # A daemon, so that Ctrl-C ends a long load at once.
    thread = threading.Thread(target=work, name="load", daemon=True)
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        # Not through the interpreter's own exit: it would take torch's threads down under the one that computes.
        logger.info("interrupted while loading")
        os._exit(128 + signal.SIGINT)
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result


def _load(config: Config) -> Served:
    device = select_device(config.device)
    budget = device.memory()
    checkpoint = open_checkpoint(config.model)
    tokenizer = load_tokenizer(checkpoint)
    chat = _select_chat(checkpoint, config)
    with LoadProgress(str(checkpoint.path.name)) as progress:
        model = load_served(
            checkpoint, device, tokenizer=tokenizer, max_seq=config.engine.max_seq, progress=progress.update
        )
    draft = _load_draft(config, checkpoint, model, tokenizer)
    prepared = prepare(model, device, config.engine, budget, draft)
    logger.info("rehearsed the largest step in %.2f s", prepared.rehearsal_seconds)
    return Served(
        checkpoint=checkpoint,
        device=device,
        model=model,
        prepared=prepared,
        tokenizer=tokenizer,
        chat=chat,
        draft=config.engine.draft,
        timing=config.engine.timing,
    )


def _load_draft(config: Config, checkpoint: Checkpoint, model: ServedModel, tokenizer: Tokenizer) -> LoadedDraft | None:
    """The draft model; None where none is asked for.

    Raises:
        StartupError: a draft flag for a model that does not generate or that has no such layer, or a draft that does
            not load or that the model cannot verify.
    """
    draft = config.engine.draft
    if draft is None:
        return None
    if model.decoder is None:
        raise StartupError(f"--draft-*: {checkpoint.path.name} does not generate, so nothing can be proposed to it")
    if isinstance(draft, DraftMtp):
        raise refuse_mtp(checkpoint)
    if isinstance(draft, DraftLookup):
        return None
    with LoadProgress(draft.path.name) as progress:
        return load_draft(
            draft,
            target=model,
            tokenizer=tokenizer,
            max_seq=min(config.engine.max_seq, model.model_limit),
            open_device=lambda: select_device(config.device),
            progress=progress.update,
        )


def _select_chat(checkpoint: Checkpoint, config: Config) -> ChatTemplate | None:
    """The template chats are rendered through; None for a model that does not chat.

    Raises:
        ConfigError: a template flag for a model that does not generate.
        CheckpointError: the template does not compile.
    """
    engine = config.engine
    if read_task(checkpoint) is Task.GENERATE:
        return select_template(checkpoint, engine.chat_template, engine.chat_template_origin)
    if engine.chat_template is not None:
        raise ConfigError(f"{engine.chat_template_origin}: this model does not generate, so it renders no chat")
    return None


async def serve(config: Config, served: Served) -> int:
    """Runs engine and listener until SIGINT or SIGTERM has been drained. Returns 0."""
    # The model's objects live for ever: without them a collection looks only at what requests leave behind.
    gc.collect()
    gc.freeze()
    metrics = Metrics()
    device_thread = DeviceThread()
    engine = served.engine(device_thread, metrics)
    server = Server(config.net, Api(engine, config.api, metrics), metrics)
    async with anyio.create_task_group() as root:
        await root.start(device_thread.run)
        await root.start(engine.run)
        # Handlers stand before the port opens: whoever sees it open may send a signal.
        await root.start(_watch_signals, config, engine, server)
        async with anyio.create_task_group() as connections:
            address = await connections.start(server.serve)
            info = served.info
            logger.info(
                "serving model=%s task=%s backend=%s rows=%d max_seq=%d weights=%d bytes kv=%d bytes address=%s",
                info.model_id,
                info.task,
                info.backend,
                info.rows,
                info.max_seq,
                info.weight_bytes,
                info.kv_bytes,
                format_address(address),
            )
        logger.info("drained")
        root.cancel_scope.cancel()
    return 0


async def _watch_signals(
    config: Config, engine: Engine, server: Server, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async with anyio.create_task_group() as task_group:
            async for number in signals:
                if server.is_draining:
                    logger.warning("second signal, leaving at once")
                    # Not sys.exit: a step on the device thread must not hold up the exit.
                    os._exit(128 + number)
                logger.info(
                    "signal %s: draining for at most %d s",
                    signal.Signals(number).name,
                    config.net.drain_timeout_seconds,
                )
                # Not engine.drain(): a request whose head had arrived may still open its sequence.
                server.drain()
                task_group.start_soon(_enforce_drain_deadline, config.net.drain_timeout_seconds, engine)


async def _enforce_drain_deadline(seconds: float, engine: Engine) -> None:
    await anyio.sleep(seconds)
    engine.drain()
    engine.abort("the server shut down before this request was finished")


def format_address(address: Address) -> str:
    """An address as it is written on the command line."""
    if isinstance(address, TcpAddress):
        host = f"[{address.host}]" if ":" in address.host else address.host
        return f"{host}:{address.port}"
    if isinstance(address, FdAddress):
        return f"fd://{address.fd}"
    return f"unix:{address.path}"
