"""--draft-model and --draft-mtp at startup: what the target can verify is loaded, everything else is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poot.config import DraftModel
from poot.devices.base import Device
from poot.engine.checkpoint import Checkpoint, open_checkpoint
from poot.engine.checkpoint.fields import quote
from poot.engine.models.decoder import DecoderModel
from poot.engine.models.served import ServedModel, load_served
from poot.engine.models.task import Task, read_task
from poot.engine.text import Tokenizer, load_tokenizer
from poot.errors import CheckpointError, StartupError


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedDraft:
    """A draft model on a device object of its own, which holds its weights, its pool and its buffers."""

    model: ServedModel
    decoder: DecoderModel
    device: Device


def load_draft(
    config: DraftModel,
    *,
    target: ServedModel,
    tokenizer: Tokenizer,
    max_seq: int,
    open_device: Callable[[], Device],
    progress: Callable[[int, int], None] | None = None,
) -> LoadedDraft:
    """Loads the draft model of `config`.

    Args:
        target, tokenizer: the served model and its text side.
        max_seq: most positions a served sequence may have.
        open_device: a new device object beside the target's.

    Raises:
        StartupError: it does not load, does not generate, or proposes what `target` cannot verify.
    """
    named = f"--draft-model {config.path}"
    try:
        checkpoint = open_checkpoint(config.path)
        if read_task(checkpoint) is not Task.GENERATE:
            raise StartupError(f"{named}: this model does not generate")
        draft_tokenizer = load_tokenizer(checkpoint)
        device = open_device()
        model = load_served(checkpoint, device, tokenizer=draft_tokenizer, max_seq=max_seq, progress=progress)
    except CheckpointError as error:
        raise StartupError(f"{named} does not load: {error}") from error
    assert model.decoder is not None
    if model.vocab_size > target.vocab_size:
        raise StartupError(
            f"{named}: its vocabulary has {model.vocab_size} tokens and the target's {target.vocab_size}, so it may "
            "propose tokens that the target does not have"
        )
    check_token_ids(named, draft_tokenizer, tokenizer, min(model.vocab_size, target.vocab_size))
    if model.model_limit < max_seq:
        raise StartupError(
            f"{named}: it has {model.model_limit} positions and a served sequence {max_seq}; a smaller --max-seq fits"
        )
    return LoadedDraft(model=model, decoder=model.decoder, device=device)


def check_token_ids(named: str, draft: Tokenizer, target: Tokenizer, num_tokens: int) -> None:
    """Refuses a draft one of whose ids below `num_tokens` stands for another text than in the target.

    Raises:
        StartupError: naming the first such id.
    """
    ours, theirs = draft.vocabulary, target.vocabulary
    for token_id in range(min(num_tokens, max(len(ours), len(theirs)))):
        mine, other = (
            vocabulary.shown_bytes(token_id) if token_id < len(vocabulary) else b"" for vocabulary in (ours, theirs)
        )
        if mine != other:
            raise StartupError(
                f"{named}: token {token_id} is {quote(mine.decode('utf-8', 'replace'))} in the draft and "
                f"{quote(other.decode('utf-8', 'replace'))} in the target"
            )


# How checkpoints say how many multi-token-prediction layers they hold: config.json, and GGUF metadata by its ending.
_MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", ".nextn_predict_layers")


def refuse_mtp(checkpoint: Checkpoint) -> StartupError:
    """Why --draft-mtp cannot be honoured for `checkpoint`; no model that poot serves has such a layer it can run."""
    for key, value in checkpoint.config.items():
        if key.endswith(_MTP_KEYS) and value:
            return StartupError(
                "--draft-mtp: running a multi-token-prediction layer is not available yet; "
                f"{checkpoint.path.name} has {value}"
            )
    return StartupError(f"--draft-mtp: {checkpoint.path.name} has no multi-token-prediction layer")
