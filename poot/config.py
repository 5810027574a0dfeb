"""The settings of one process as frozen slices, one for each part that reads them.

`cli.py` parses and validates them once, at the edge; a part receives its own slice and never the whole. Defaults,
bounds and units are those of the configuration reference. Nothing here reads the environment or a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Backend(Enum):
    """Values of --backend. `auto` picks ptx, rocm, wgpu, cpu in that order by what opens."""

    AUTO = "auto"
    CPU = "cpu"
    PTX = "ptx"
    ROCM = "rocm"
    WGPU = "wgpu"
    VULKAN = "vulkan"


@dataclass(frozen=True, kw_only=True)
class TcpAddress:
    """A TCP listener. `host` is an IP address or name without brackets; port 0 lets the kernel choose."""

    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class UnixAddress:
    """A Unix stream listener at `path`."""

    path: str


@dataclass(frozen=True, kw_only=True)
class FdAddress:
    """A listening socket inherited from the parent process as file descriptor `fd`."""

    fd: int


Address = TcpAddress | UnixAddress | FdAddress


class PlacementKind(Enum):
    SINGLE = "single"
    PIPELINE = "pipeline"
    TENSOR = "tensor"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the model runs: one device, or a group of at least two distinct GPU ordinals in the order given."""

    kind: PlacementKind = PlacementKind.SINGLE
    ordinals: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DraftLookup:
    """--draft-lookup NGRAM:K."""

    ngram: int
    num_draft_tokens: int


@dataclass(frozen=True, kw_only=True)
class DraftModel:
    """--draft-model PATH:K."""

    path: Path
    num_draft_tokens: int


@dataclass(frozen=True, kw_only=True)
class DraftMtp:
    """--draft-mtp K."""

    num_draft_tokens: int


Draft = DraftLookup | DraftModel | DraftMtp


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """What `poot.devices` reads: which backend opens and where the model is placed."""

    backend: Backend = Backend.AUTO
    placement: Placement = field(default_factory=Placement)


@dataclass(frozen=True, kw_only=True)
class TimingConfig:
    """Device timing. `enabled` false means that no device timestamp is ever requested."""

    enabled: bool = False
    max_steps: int = 4096
    max_dispatch_records: int = 65536
    max_in_flight_queries: int = 64
    sample_every: int = 1


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What the engine's plan reads.

    Attributes:
        rows: rows to fit for, or None for the task's default (4 for a decoder, 32 for an encoder).
        max_seq: positions per sequence to fit for, before the model's own limit.
        draft: how to speculate, or None.
        expert_pool_rows: resident expert rows per layer, or None for all of them.
        chat_template: jinja source that replaces the model's own template, or None.
        chat_template_origin: the flag and file it came from, for messages.
    """

    rows: int | None = None
    max_seq: int = 4096
    draft: Draft | None = None
    expert_pool_rows: int | None = None
    chat_template: str | None = None
    chat_template_origin: str | None = None
    timing: TimingConfig = field(default_factory=TimingConfig)


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """What `poot.net` reads. Durations in seconds; `max_connections` 0 means no cap."""

    address: Address = field(default_factory=lambda: TcpAddress(host="127.0.0.1", port=8080))
    max_connections: int = 4096
    request_timeout_seconds: int = 30
    write_timeout_seconds: int = 30
    drain_timeout_seconds: int = 30


@dataclass(frozen=True, kw_only=True)
class ApiConfig:
    """What `poot.api` reads. Sizes in bytes, durations in seconds; `rate_limit_rpm` 0 means no limit."""

    rate_limit_rpm: int = 0
    lora_admin_key: str | None = field(default=None, repr=False)
    max_pending_requests: int = 256
    max_receiving_requests: int = 64
    max_queue_wait_seconds: int = 60
    max_body_bytes: int = 4 * 1024 * 1024
    max_image_body_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Config:
    """All slices of one process. Only `server.py` sees it whole."""

    model: Path
    device: DeviceConfig = field(default_factory=DeviceConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    net: NetConfig = field(default_factory=NetConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
