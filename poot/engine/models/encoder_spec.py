"""What an encoder is, as data, and what its tensors are called. `encoder.py` runs any of them.

An encoder's names follow no scheme that its spec could decide, as a decoder's do, so a family gives both together.
"""

from __future__ import annotations

from dataclasses import dataclass

from poot.devices.base import Activation
from poot.engine.models.spec import RopeSpec


@dataclass(frozen=True, kw_only=True)
class EncoderLayerSpec:
    """One layer.

    Attributes:
        reach: how many positions (before, after) its own a token sees; None is all.
        rope: None where positions are in the embeddings.
        has_attention_norm: false in ModernBERT's first layer, whose input is normalized already. Pre-norm only.
    """

    reach: tuple[int | None, int | None] = (None, None)
    rope: RopeSpec | None = None
    has_attention_norm: bool = True


@dataclass(frozen=True, kw_only=True)
class DistanceBiasSpec:
    """MPNet's and T5's bias on scores by the bucket of the distance (Raffel et al. 2020, section 2.1), both ways."""

    num_buckets: int
    max_distance: int


@dataclass(frozen=True, kw_only=True)
class ClassifierSpec:
    """The head of a cross-encoder: pooled vector -> [dense -> activation -> [norm]] -> one logit."""

    has_dense: bool
    activation: Activation = Activation.TANH
    has_norm: bool = False


@dataclass(frozen=True, kw_only=True)
class EncoderSpec:
    """An encoder.

    Attributes:
        family: the architecture's name, for logs.
        max_positions: most tokens of a text.
        num_position_rows: of the position table; 0 where there is no such table.
        position_offset: its row that the first token takes.
        num_token_types: 0 where there is no such table.
        pre_norms: norms stand before attention and MLP (and one at the end) instead of after their residual additions.
        is_gated: the MLP is act(gate) * up.
        fused_qkv, fused_gate_up: the file stores these projections as one tensor.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    max_positions: int
    layers: tuple[EncoderLayerSpec, ...]
    norm_eps: float
    activation: Activation
    num_position_rows: int = 0
    position_offset: int = 0
    num_token_types: int = 0
    pre_norms: bool = False
    is_gated: bool = False
    fused_qkv: bool = False
    fused_gate_up: bool = False
    distance_bias: DistanceBiasSpec | None = None
    classifier: ClassifierSpec | None = None

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, kw_only=True)
class EncoderLayerNames:
    """Names of one layer's modules: "weight" and, where the file has it, "bias" follow after a dot.

    `qkv` and `up` hold one name where the file fuses them, else one for each part (gate first).
    """

    qkv: tuple[str, ...]
    output: str
    attention_norm: str | None
    up: tuple[str, ...]
    down: str
    mlp_norm: str


@dataclass(frozen=True, kw_only=True)
class EncoderNames:
    """Names of an encoder's modules, as in `EncoderLayerNames`. None where it has no such module.

    Attributes:
        distance_bias: the table of an encoder with `EncoderSpec.distance_bias`.
        unused: beginnings of the names of tensors that neither embedding nor scoring looks at: heads that pretraining
            used, and buffers that hold nothing the config does not say.
    """

    token_embedding: str
    position_embedding: str | None
    type_embedding: str | None
    embedding_norm: str
    layers: tuple[EncoderLayerNames, ...]
    output_norm: str | None = None
    distance_bias: str | None = None
    classifier_dense: str | None = None
    classifier_norm: str | None = None
    classifier_output: str | None = None
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """Everything a family reads from a checkpoint."""

    spec: EncoderSpec
    names: EncoderNames
