"""The command line: every flag of the configuration reference, read into the frozen slices of `poot.config`.

`parse_command_line` is the one door. Everything is checked here before anything heavy is imported or loaded, in this
order: the shape of the command line and every value; flags that exclude or need each other; files that flags name;
and last the flags whose feature is not built yet, so that a wrong value is told as such first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from poot.cli import flags
from poot.cli.help import help_text
from poot.cli.reader import Arguments, BadValue, Option, Value, quote, read_arguments
from poot.cli.values import ADDRESS_FORMS, parse_address, read_key_file, read_template_file
from poot.config import (
    Address,
    ApiConfig,
    Backend,
    Config,
    DeviceConfig,
    Draft,
    DraftMtp,
    EngineConfig,
    NetConfig,
    Placement,
    PlacementKind,
    TimingConfig,
)
from poot.errors import ConfigError, NotAvailableError, StartupError

__all__ = ["Print", "demo_model", "help_text", "parse_command_line"]

MIB = 1024 * 1024


class Print(Enum):
    """A command line that asks for a text instead of a server."""

    HELP = "help"
    VERSION = "version"


@dataclass(frozen=True, kw_only=True)
class _Files:
    """What the files that flags name held, and where the chat template came from."""

    chat_template: str | None
    chat_template_origin: str | None
    lora_admin_key: str | None


def demo_model() -> Path:
    """Where `scripts/fetch_models.py smollm2` puts the demo model, which is served when MODEL is left out."""
    return Path.home() / ".cache" / "poot" / "models" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def parse_command_line(arguments: Sequence[str]) -> Config | Print:
    """The configuration that `arguments` (without the program's name) ask for.

    --help and --version win over the rest of a command line whose values parse.

    Raises:
        ConfigError: an option or value that is not allowed; the message names it and says what is.
        NotAvailableError: a flag whose feature is not built yet.
        StartupError: MODEL was left out and the demo model was not fetched.
    """
    given = read_arguments(arguments, flags.OPTIONS, positionals=("MODEL", "ADDR"))
    if given.has(flags.HELP):
        return Print.HELP
    if given.has(flags.VERSION):
        return Print.VERSION
    address = _address(given)
    _check_combinations(given)
    files = _read_files(given)
    _refuse_what_is_not_built(given)
    return Config(
        model=_model(given),
        device=DeviceConfig(
            backend=_value(given, flags.BACKEND, Backend.AUTO),
            placement=_value(given, flags.PLACEMENT, Placement()),
        ),
        engine=_engine(given, files),
        net=NetConfig(
            address=address,
            max_connections=_value(given, flags.MAX_CONNECTIONS, NetConfig.max_connections),
            request_timeout_seconds=_value(given, flags.REQUEST_TIMEOUT_SECS, NetConfig.request_timeout_seconds),
            write_timeout_seconds=_value(given, flags.WRITE_TIMEOUT_SECS, NetConfig.write_timeout_seconds),
            drain_timeout_seconds=_value(given, flags.DRAIN_TIMEOUT_SECS, NetConfig.drain_timeout_seconds),
        ),
        api=ApiConfig(
            rate_limit_rpm=_value(given, flags.RATE_LIMIT_RPM, ApiConfig.rate_limit_rpm),
            lora_admin_key=files.lora_admin_key,
            max_pending_requests=_value(given, flags.MAX_PENDING_REQUESTS, ApiConfig.max_pending_requests),
            max_receiving_requests=_value(given, flags.MAX_RECEIVING_REQUESTS, ApiConfig.max_receiving_requests),
            max_queue_wait_seconds=_value(given, flags.MAX_QUEUE_WAIT_SECS, ApiConfig.max_queue_wait_seconds),
            max_body_bytes=_value(given, flags.MAX_BODY_MIB, ApiConfig.max_body_bytes // MIB) * MIB,
            max_image_body_bytes=_value(given, flags.MAX_IMAGE_BODY_MIB, ApiConfig.max_image_body_bytes // MIB) * MIB,
        ),
    )


def _value(given: Arguments, option: Option[Value], default: Value) -> Value:
    value = given.get(option)
    return default if value is None else value


def _address(given: Arguments) -> Address:
    text = given.positionals[1] if len(given.positionals) > 1 else flags.ADDRESS_DEFAULT
    try:
        return parse_address(text)
    except BadValue as error:
        detail = f" ({error})" if str(error) else ""
        raise ConfigError(f"ADDR: {quote(text)} is not allowed{detail}; allowed: {ADDRESS_FORMS}") from error


def _check_combinations(given: Arguments) -> None:
    """Raises ConfigError for flags that exclude or need each other."""
    for group in flags.EXCLUSIVE:
        names = [option.name for option in group if given.has(option)]
        if len(names) > 1:
            raise ConfigError(f"{names[0]} and {names[1]} exclude each other; allowed: one of them")
    for option in flags.TIMING_BOUNDS:
        if given.has(option) and not given.has(flags.DEVICE_TIMING):
            raise ConfigError(f"{option.name} needs --device-timing, which was not given")
    placement = given.get(flags.PLACEMENT)
    if placement is None or placement.kind is PlacementKind.SINGLE:
        return
    backend = _value(given, flags.BACKEND, Backend.AUTO)
    if backend not in (Backend.AUTO, Backend.PTX):
        raise ConfigError(
            f"--placement {placement.kind.value} needs the ptx backend; --backend {backend.value} cannot copy between "
            "devices; allowed: --backend ptx or auto"
        )
    if given.has(flags.DEVICE_TIMING):
        raise ConfigError(f"--device-timing and --placement {placement.kind.value} exclude each other; allowed: one")
    if given.has(flags.DRAFT_MTP):
        raise ConfigError(f"--draft-mtp and --placement {placement.kind.value} exclude each other; allowed: one")


def _read_files(given: Arguments) -> _Files:
    template = given.get(flags.CHAT_TEMPLATE)
    origin = None if template is None else flags.CHAT_TEMPLATE.name
    template_path = given.get(flags.CHAT_TEMPLATE_FILE)
    if template_path is not None:
        template = read_template_file(flags.CHAT_TEMPLATE_FILE.name, template_path)
        origin = f"{flags.CHAT_TEMPLATE_FILE.name} {template_path}"
    key_path = given.get(flags.LORA_ADMIN_KEY_FILE)
    key = None if key_path is None else read_key_file(flags.LORA_ADMIN_KEY_FILE.name, key_path)
    return _Files(chat_template=template, chat_template_origin=origin, lora_admin_key=key)


def _refuse_what_is_not_built(given: Arguments) -> None:
    """Raises NotAvailableError for the first flag, in the order of the table, that asks for what is not built."""
    placement = given.get(flags.PLACEMENT)
    if placement is not None and placement.kind is not PlacementKind.SINGLE:
        raise NotAvailableError(f"--placement {placement.kind.value} (a group of devices)")
    for option, feature in flags.NOT_BUILT:
        if given.has(option):
            raise NotAvailableError(f"{option.name} ({feature})")


def _engine(given: Arguments, files: _Files) -> EngineConfig:
    return EngineConfig(
        rows=given.get(flags.ROWS),
        max_seq=_value(given, flags.MAX_SEQ, EngineConfig.max_seq),
        draft=_draft(given),
        expert_pool_rows=given.get(flags.EXPERT_POOL),
        chat_template=files.chat_template,
        chat_template_origin=files.chat_template_origin,
        timing=TimingConfig(
            enabled=given.has(flags.DEVICE_TIMING),
            max_steps=_value(given, flags.TIMING_MAX_STEPS, TimingConfig.max_steps),
            max_dispatch_records=_value(given, flags.TIMING_MAX_DISPATCH_RECORDS, TimingConfig.max_dispatch_records),
            max_in_flight_queries=_value(given, flags.TIMING_MAX_IN_FLIGHT_QUERIES, TimingConfig.max_in_flight_queries),
            sample_every=_value(given, flags.TIMING_SAMPLE_EVERY, TimingConfig.sample_every),
        ),
    )


def _draft(given: Arguments) -> Draft | None:
    num_draft_tokens = given.get(flags.DRAFT_MTP)
    if num_draft_tokens is not None:
        return DraftMtp(num_draft_tokens=num_draft_tokens)
    return given.get(flags.DRAFT_LOOKUP) or given.get(flags.DRAFT_MODEL)


def _model(given: Arguments) -> Path:
    if given.positionals:
        return Path(given.positionals[0])
    path = demo_model()
    if not path.is_file():
        raise StartupError(
            f"MODEL was left out and the demo model is not at {path}; give the path of a safetensors directory or a "
            ".gguf file, or run `python scripts/fetch_models.py smollm2` (`make serve` does)"
        )
    return path
