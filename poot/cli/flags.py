"""The table of flags: how each is written, what it takes, its default, bounds and help text.

Everything else is made from it: the reader, the help text, and the test that holds docs/flags.md to it. What the flags
mean together (which exclude or need each other, which are not built yet) is listed at the end.
"""

from __future__ import annotations

from poot.cli.reader import Option, OptionGroup, describe_range, integer, present
from poot.cli.values import (
    parse_backend,
    parse_draft_lookup,
    parse_draft_model,
    parse_path,
    parse_placement,
    parse_template,
)

ADDRESS_DEFAULT = "127.0.0.1:8080"


def _count(name: str, metavar: str, default: str, low: int, high: int | None, help_text: str) -> Option[int]:
    """An option that takes a whole number from `low` to `high`, or to the largest there is."""
    bounds = (low,) if high is None else (low, high)
    return Option(
        name=name,
        metavar=metavar,
        default=default,
        allowed=describe_range(*bounds),
        help=help_text,
        parse=integer(*bounds),
    )


HELP = Option(
    name="--help", metavar=None, default="off", allowed="no value", help="Print this text and exit.", parse=present
)
VERSION = Option(
    name="--version", metavar=None, default="off", allowed="no value", help="Print the version and exit.", parse=present
)

BACKEND = Option(
    name="--backend",
    metavar="NAME",
    default="auto",
    allowed="auto, cpu, ptx, rocm, wgpu or vulkan",
    help="What runs the model. auto is ptx if a CUDA device opens, else rocm, else wgpu, else cpu; a backend named "
    "here whose device is absent is refused.",
    parse=parse_backend,
)
PLACEMENT = Option(
    name="--placement",
    metavar="WHERE",
    default="single",
    allowed="single, pipeline:ORD,ORD,... or tensor:ORD,ORD,... with at least two distinct GPU ordinals",
    help="One device, or a group of GPUs by ordinal: one stage of layers each (pipeline), or one tensor-parallel rank "
    "each (tensor). A group needs the ptx backend.",
    parse=parse_placement,
)
ROWS = _count(
    "--rows",
    "N",
    "4 for a decoder, 32 for an encoder",
    1,
    None,
    "Rows to fit for: concurrent sequences of a generative model, texts per request of an embedding or reranking "
    "model. Halved until the workload fits the device.",
)
MAX_SEQ = _count(
    "--max-seq",
    "N",
    "4096",
    1,
    None,
    "Positions (tokens) per sequence or text, capped at the model's own limit. Halved, to 128 at least, until the "
    "workload fits the device.",
)
EXPERT_POOL = _count(
    "--expert-pool",
    "ROWS",
    "off",
    1,
    None,
    "Keep this many expert rows of each layer resident and page the others in as steps select them.",
)
DRAFT_LOOKUP = Option(
    name="--draft-lookup",
    metavar="NGRAM:K",
    default="off",
    allowed=f"NGRAM:K, each {describe_range(1)}",
    help="Speculate by prompt lookup: match the last NGRAM tokens against the earlier text, propose up to K tokens. "
    "Split at the first colon. Excludes the other draft flags.",
    parse=parse_draft_lookup,
)
DRAFT_MODEL = Option(
    name="--draft-model",
    metavar="PATH:K",
    default="off",
    allowed=f"PATH:K, a path and {describe_range(1)}",
    help="Speculate with the draft model at PATH, K tokens a round. Split at the last colon. Excludes the other draft "
    "flags.",
    parse=parse_draft_model,
)
DRAFT_MTP = _count(
    "--draft-mtp",
    "K",
    "off",
    1,
    None,
    "Speculate with the model's own multi-token-prediction layer, K tokens a round. Excludes the other draft flags.",
)
CHAT_TEMPLATE = Option(
    name="--chat-template",
    metavar="JINJA",
    default="off",
    allowed="the source of a jinja template; there are no built-in templates to name",
    help="Render chats through this jinja template instead of the model's own. Excludes --chat-template-file.",
    parse=parse_template,
)
CHAT_TEMPLATE_FILE = Option(
    name="--chat-template-file",
    metavar="FILE",
    default="off",
    allowed="a UTF-8 file that holds a jinja template",
    help="The same, read from FILE. Excludes --chat-template.",
    parse=parse_path,
)
RATE_LIMIT_RPM = _count(
    "--rate-limit-rpm",
    "N",
    "0",
    0,
    None,
    "POST requests per peer IP address in each fixed window of 60 seconds; 0 is no limit.",
)
LORA_ADMIN_KEY_FILE = Option(
    name="--lora-admin-key-file",
    metavar="FILE",
    default="unset",
    allowed="a file that holds one bearer token on its own line",
    help="The bearer token that the /v1/lora_adapters routes ask for.",
    parse=parse_path,
)
MAX_CONNECTIONS = _count("--max-connections", "N", "4096", 0, None, "Connections at once; 0 is no limit.")
MAX_PENDING_REQUESTS = _count(
    "--max-pending-requests",
    "N",
    "256",
    1,
    None,
    "Model requests admitted at once, running or waiting. One more is answered 429.",
)
MAX_RECEIVING_REQUESTS = _count(
    "--max-receiving-requests",
    "N",
    "64",
    1,
    None,
    "Admitted requests that may be sending their body at once. One more is answered 429.",
)
MAX_QUEUE_WAIT_SECS = _count(
    "--max-queue-wait-secs", "N", "60", 1, None, "Seconds an admitted request may wait for a row; then 503."
)
MAX_BODY_MIB = _count(
    "--max-body-mib", "N", "4", 1, None, "Largest request body, in MiB, of every route but a chat that takes images."
)
MAX_IMAGE_BODY_MIB = _count(
    "--max-image-body-mib", "N", "64", 1, None, "Largest request body, in MiB, of a chat that takes images."
)
REQUEST_TIMEOUT_SECS = _count(
    "--request-timeout-secs",
    "N",
    "30",
    1,
    None,
    "Seconds from accept in which a whole request, head and body, must arrive; then 408.",
)
WRITE_TIMEOUT_SECS = _count(
    "--write-timeout-secs", "N", "30", 1, None, "Seconds that one write of an answer or of one stream frame may take."
)
DRAIN_TIMEOUT_SECS = _count(
    "--drain-timeout-secs",
    "N",
    "30",
    1,
    86400,
    "Seconds that requests in flight get to finish after SIGINT or SIGTERM.",
)
DEVICE_TIMING = Option(
    name="--device-timing",
    metavar=None,
    default="off",
    allowed="no value",
    help="Ask the device for timestamps of every dispatch and keep bounded detail. Diagnostic: it slows steps down.",
    parse=present,
)
TIMING_MAX_STEPS = _count(
    "--timing-max-steps", "N", "4096", 1, 16384, "Steps whose detail is kept. Needs --device-timing."
)
TIMING_MAX_DISPATCH_RECORDS = _count(
    "--timing-max-dispatch-records",
    "N",
    "65536",
    1,
    262144,
    "Dispatch records kept over those steps. Needs --device-timing.",
)
TIMING_MAX_IN_FLIGHT_QUERIES = _count(
    "--timing-max-in-flight-queries", "N", "64", 1, 4096, "Timestamp queries in flight at once. Needs --device-timing."
)
TIMING_SAMPLE_EVERY = _count(
    "--timing-sample-every", "N", "1", 1, None, "Keep the detail of one of every N steps. Needs --device-timing."
)

GROUPS: tuple[OptionGroup, ...] = (
    OptionGroup(title="Device", options=(BACKEND, PLACEMENT)),
    OptionGroup(title="Model and memory", options=(ROWS, MAX_SEQ, EXPERT_POOL, CHAT_TEMPLATE, CHAT_TEMPLATE_FILE)),
    OptionGroup(title="Speculation", options=(DRAFT_LOOKUP, DRAFT_MODEL, DRAFT_MTP)),
    OptionGroup(
        title="HTTP",
        options=(
            MAX_CONNECTIONS,
            MAX_PENDING_REQUESTS,
            MAX_RECEIVING_REQUESTS,
            MAX_QUEUE_WAIT_SECS,
            MAX_BODY_MIB,
            MAX_IMAGE_BODY_MIB,
            REQUEST_TIMEOUT_SECS,
            WRITE_TIMEOUT_SECS,
            DRAIN_TIMEOUT_SECS,
            RATE_LIMIT_RPM,
            LORA_ADMIN_KEY_FILE,
        ),
    ),
    OptionGroup(
        title="Device timing",
        options=(
            DEVICE_TIMING,
            TIMING_MAX_STEPS,
            TIMING_MAX_DISPATCH_RECORDS,
            TIMING_MAX_IN_FLIGHT_QUERIES,
            TIMING_SAMPLE_EVERY,
        ),
    ),
    OptionGroup(title="Other", options=(HELP, VERSION)),
)
OPTIONS: tuple[Option[object], ...] = tuple(option for group in GROUPS for option in group.options)

EXCLUSIVE: tuple[tuple[Option[object], ...], ...] = (
    (DRAFT_LOOKUP, DRAFT_MODEL, DRAFT_MTP),
    (CHAT_TEMPLATE, CHAT_TEMPLATE_FILE),
)
TIMING_BOUNDS: tuple[Option[object], ...] = (
    TIMING_MAX_STEPS,
    TIMING_MAX_DISPATCH_RECORDS,
    TIMING_MAX_IN_FLIGHT_QUERIES,
    TIMING_SAMPLE_EVERY,
)
# Flags whose feature is not built yet: refused by name whenever they are given, after their value was checked.
NOT_BUILT: tuple[tuple[Option[object], str], ...] = (
    (EXPERT_POOL, "paging of expert tables"),
    (MAX_IMAGE_BODY_MIB, "serving a model that takes images"),
    (LORA_ADMIN_KEY_FILE, "LoRA adapters"),
)
