"""Which architecture names are served, and by which family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poot.engine.checkpoint.fields import quote
from poot.engine.checkpoint.mapped_file import display_path
from poot.engine.checkpoint.types import Checkpoint, FileFormat
from poot.engine.models.families import gemma, granite, llama, olmo2, phi3, qwen, smollm3
from poot.engine.models.spec import DecoderSpec
from poot.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Family:
    """One decoder family.

    Attributes:
        hub_architecture: its class name in config.json's `architectures`.
        gguf_architecture: its `general.architecture`.
        from_hub, from_gguf: read a checkpoint of that format into a spec.
    """

    name: str
    hub_architecture: str
    gguf_architecture: str
    from_hub: Callable[[Checkpoint], DecoderSpec]
    from_gguf: Callable[[Checkpoint], DecoderSpec]


FAMILIES = (
    Family("llama", "LlamaForCausalLM", "llama", llama.from_hub, llama.from_gguf),
    Family("mistral", "MistralForCausalLM", "llama", llama.mistral_from_hub, llama.from_gguf),
    Family("qwen2", "Qwen2ForCausalLM", "qwen2", qwen.qwen2_from_hub, qwen.qwen2_from_gguf),
    Family("qwen3", "Qwen3ForCausalLM", "qwen3", qwen.qwen3_from_hub, qwen.qwen3_from_gguf),
    Family("smollm3", "SmolLM3ForCausalLM", "smollm3", smollm3.from_hub, smollm3.from_gguf),
    Family("gemma2", "Gemma2ForCausalLM", "gemma2", gemma.gemma2_from_hub, gemma.gemma2_from_gguf),
    Family("gemma3", "Gemma3ForCausalLM", "gemma3", gemma.gemma3_from_hub, gemma.gemma3_from_gguf),
    Family("phi3", "Phi3ForCausalLM", "phi3", phi3.from_hub, phi3.from_gguf),
    Family("granite", "GraniteForCausalLM", "granite", granite.from_hub, granite.from_gguf),
    Family("olmo2", "Olmo2ForCausalLM", "olmo2", olmo2.from_hub, olmo2.from_gguf),
)


def model_families() -> tuple[Family, ...]:
    """Every family served, for documentation and messages."""
    return FAMILIES


def read_spec(checkpoint: Checkpoint) -> DecoderSpec:
    """The spec of `checkpoint`.

    Raises:
        CheckpointError: an architecture that is not served, or a config that is wrong or not understood.
        NotAvailableError: a model that needs a feature that is not built yet.
    """
    architecture = checkpoint.architecture
    for family in FAMILIES:
        if checkpoint.file_format is FileFormat.GGUF and architecture == family.gguf_architecture:
            return family.from_gguf(checkpoint)
        if checkpoint.file_format is FileFormat.SAFETENSORS and architecture == family.hub_architecture:
            return family.from_hub(checkpoint)
    raise CheckpointError(
        f"{_kind(architecture)}; poot serves {_supported(checkpoint)}", path=display_path(checkpoint.path)
    )


def _kind(architecture: str) -> str:
    """What is known of an architecture that is not served."""
    shown = quote(architecture)
    if architecture.endswith("ForConditionalGeneration") or architecture in ("clip", "mmproj"):
        return f"architecture {shown} is a vision-language or encoder-decoder model, which is not served yet"
    is_encoder = architecture.endswith(("Model", "ForSequenceClassification", "ForMaskedLM"))
    if (is_encoder and not architecture.endswith("LMHeadModel")) or "bert" in architecture.lower():
        return f"architecture {shown} is an encoder of a kind that is not served"
    return f"architecture {shown} is not known"


def _supported(checkpoint: Checkpoint) -> str:
    is_gguf = checkpoint.file_format is FileFormat.GGUF
    names = {family.gguf_architecture if is_gguf else family.hub_architecture: None for family in FAMILIES}
    return ", ".join(names)
