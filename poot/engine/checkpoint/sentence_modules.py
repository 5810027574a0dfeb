"""A sentence-transformers model as data: what follows the transformer and what it is told (`sentence_transformers`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from poot.devices.base import Weight


class PoolingMode(Enum):
    """The pooling modes that are served, as sentence-transformers spells them."""

    MEAN = "mean"
    CLS = "cls"
    LAST = "lasttoken"


class DenseActivation(Enum):
    """The activations of a Dense module that are served, by the class of torch.nn."""

    IDENTITY = "Identity"
    TANH = "Tanh"
    RELU = "ReLU"
    GELU = "GELU"
    SILU = "SiLU"


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolingModule:
    """How token vectors become one.

    Attributes:
        features: length of a token's vector; None where the config does not say.
        include_prompt: whether a mean takes in the tokens of the prompt.
    """

    mode: PoolingMode
    features: int | None
    include_prompt: bool


@dataclass(frozen=True, kw_only=True)
class DenseModule:
    """A linear map of the pooled vector, then an activation.

    Attributes:
        weight: `[out_features, in_features]`.
        bias: `[out_features]`, or None.
    """

    weight: Weight
    bias: Weight | None
    activation: DenseActivation

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogitScore:
    """A reranker's score: the last token's logit of `true_token_id`, less that of `false_token_id` where it has one."""

    true_token_id: int
    false_token_id: int | None


@dataclass(frozen=True, kw_only=True)
class SentenceModules:
    """A sentence-transformers directory.

    Attributes:
        transformer_path: where the transformer's files are, relative to the directory; "" as a rule.
        is_cross_encoder: the directory was saved by a CrossEncoder.
        pooling: None for a cross-encoder.
        dense: in order, after pooling.
        normalizes: whether a Normalize module stands at the end.
        logit_score: of a cross-encoder that is a language model.
        max_tokens: most tokens of a text, special tokens included; None where the tokenizer's own limit holds.
        lowercases: texts are lowered before they are tokenized.
        prompts: named instructions put before a text; empty ones are left out.
        prompt_names: all names in the file, those of empty prompts included.
        default_prompt: the one that is used when none is named, or None.
        template_variables: what a chat template is given besides the messages.
        truncate_dim: vectors are cut to this length, or None.
        settings: config_sentence_transformers.json as it is.
    """

    transformer_path: str = ""
    is_cross_encoder: bool = False
    pooling: PoolingModule | None = None
    dense: tuple[DenseModule, ...] = ()
    normalizes: bool = False
    logit_score: LogitScore | None = None
    max_tokens: int | None = None
    lowercases: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt_names: frozenset[str] = frozenset()
    default_prompt: str | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    truncate_dim: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
