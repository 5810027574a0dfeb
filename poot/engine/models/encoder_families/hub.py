"""Reads an encoder's config.json as Hugging Face's transformers means it.

As with decoders, fields that change what a model computes and that its family does not read are refused by name unless
they hold the value that changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from poot.devices.base import Activation
from poot.engine.checkpoint.fields import ConfigReader, quote
from poot.engine.checkpoint.mapped_file import display_path
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.models.families.bounds import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH
from poot.engine.models.families.noted import Noted
from poot.errors import CheckpointError

ACTIVATIONS = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
}

# Fields that change what is computed, with the values that change nothing. Families that read one are exempt.
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "quantization_config": (),
    "compression_config": (),
    "num_local_experts": (0,),
    "num_experts": (0,),
    "moe_every_n_layers": (0,),
    "use_rms_norm": (False,),
    "parallel_block": (False,),
    "causal": (False,),
    "prenorm": (False,),
    "rotary_scaling_factor": (),
    "rope_scaling": (),
    "attention_bias": (False,),
    "mlp_bias": (False,),
}


@dataclass(frozen=True, kw_only=True)
class SizeKeys:
    """What a family calls its sizes."""

    hidden: str = "hidden_size"
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    intermediate: str = "intermediate_size"
    positions: str = "max_position_embeddings"


class HubEncoder:
    """config.json of one encoder.

    Raises:
        CheckpointError: a field is missing, has the wrong type, or is out of range.
    """

    def __init__(self, checkpoint: Checkpoint, family: str, keys: SizeKeys | None = None) -> None:
        keys = keys or SizeKeys()
        self.family = family
        self.checkpoint = checkpoint
        self._noted = Noted(checkpoint.config)
        self.reader = reader = ConfigReader(self._noted, where=f"{display_path(checkpoint.path)}: config.json")
        self.hidden_size = reader.require_int(keys.hidden, minimum=1, maximum=MAX_WIDTH)
        self.num_layers = reader.require_int(keys.layers, minimum=1, maximum=MAX_LAYERS)
        self.num_heads = reader.require_int(keys.heads, minimum=1, maximum=MAX_HEADS)
        self.intermediate_size = reader.require_int(keys.intermediate, minimum=1, maximum=MAX_WIDTH)
        self.num_positions = reader.require_int(keys.positions, minimum=1, maximum=MAX_POSITIONS)
        self.vocab_size = reader.require_int("vocab_size", minimum=1)
        if self.hidden_size % self.num_heads:
            raise reader.refuse(keys.hidden, f"a multiple of {keys.heads}, {self.num_heads}")

    @property
    def has_classifier(self) -> bool:
        return self.checkpoint.architecture.endswith("ForSequenceClassification")

    def activation(self, key: str, default: str) -> Activation:
        """The activation named at `key`.

        Raises:
            CheckpointError: one that is not served.
        """
        name = self.reader.optional_str(key, default)
        if name not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise CheckpointError(f"{key} {quote(name)} is not supported; poot has {known}", path=self.reader.where)
        return ACTIVATIONS[name]

    def norm_eps(self, key: str, default: float) -> float:
        return self.reader.optional_float(key, default, minimum=0.0, maximum=1.0)

    def prefix(self, candidates: Sequence[str], probe: str) -> str:
        """What stands before the encoder's own tensor names: models with a head on top keep it in an attribute."""
        for prefix in (*candidates, ""):
            if f"{prefix}{probe}" in self.checkpoint.tensors:
                return prefix
        raise CheckpointError(f"tensor {probe} is missing", path=display_path(self.checkpoint.path))

    def refuse_unread(self) -> None:
        """Refuses a field that changes what is computed and that nobody asked for.

        Raises:
            CheckpointError: names it.
        """
        for key, neutral in NEUTRAL_VALUES.items():
            value = self._noted.values_by_key.get(key)
            if key not in self._noted.asked and value is not None and value not in neutral:
                raise CheckpointError(
                    f"{key} {quote(value)} is not supported for {self.family}", path=self.reader.where
                )
