"""What files say of prompts, lengths, limits and scores, as sentence-transformers and vLLM read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from poot.devices.encode import Pooling
from poot.engine.checkpoint.sentence_modules import PoolingMode, PoolingModule, SentenceModules
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.encoding import EncodeProfile, ScoreActivation
from poot.engine.models.profile import read_activation, read_max_tokens, read_profile
from poot.engine.models.task import Task
from poot.errors import CheckpointError
from tests.engine.models.checkpoints import hub_checkpoint

MEAN = PoolingModule(mode=PoolingMode.MEAN, features=None, include_prompt=True)


def with_sentence(checkpoint: Checkpoint | None = None, **fields: Any) -> Checkpoint:
    return replace(checkpoint or hub_checkpoint(), sentence=SentenceModules(pooling=MEAN, **fields))


def profile(checkpoint: Checkpoint, dim: int = 16) -> EncodeProfile:
    return read_profile(checkpoint, Task.EMBED, dim=dim, max_tokens=32)


@pytest.mark.parametrize(
    ("config", "settings", "dimensions", "any_dimension"),
    [
        ({}, {}, (), False),
        ({"matryoshka_dimensions": [16, 4, 8]}, {}, (4, 8, 16), False),
        ({}, {"matryoshka_dimensions": [4]}, (4,), False),
        ({"is_matryoshka": True}, {}, (), True),
        ({"is_matryoshka": True, "matryoshka_dimensions": [8]}, {}, (8,), False),
        ({"is_matryoshka": False}, {}, (), False),
        ({"matryoshka_dimensions": [8, 999]}, {}, (8,), False),  # of a larger sibling
    ],
)
def test_shorter_lengths_are_those_the_configs_declare(
    config: dict[str, Any], settings: dict[str, Any], dimensions: tuple[int, ...], any_dimension: bool
) -> None:
    found = profile(with_sentence(hub_checkpoint(config=config), settings=settings))
    assert (found.dimensions, found.any_dimension) == (dimensions, any_dimension)


@pytest.mark.parametrize("value", [[0], ["a"], 5, [True]])
def test_malformed_lengths_are_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match="matryoshka_dimensions"):
        profile(hub_checkpoint(config={"matryoshka_dimensions": value}))


@pytest.mark.parametrize(
    ("prompts", "query", "document"),
    [
        ({}, None, None),
        ({"query": "q: ", "passage": "p: "}, "query", "passage"),
        ({"query": "q: ", "corpus": "c: ", "document": "d: "}, "query", "document"),
        ({"query": "", "document": "", "passage": "p: "}, None, None),  # an empty prompt is one
        ({"search": "s: "}, None, None),
    ],
)
def test_query_and_document_prompts_are_found_by_their_names(
    prompts: dict[str, str], query: str | None, document: str | None
) -> None:
    # SentenceTransformer.encode_query and encode_document (6.3).
    found = profile(
        with_sentence(prompts={name: text for name, text in prompts.items() if text}, prompt_names=frozenset(prompts))
    )
    assert (found.query_prompt, found.document_prompt) == (query, document)


IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    ("config", "settings", "expected"),
    [
        ({}, {}, ScoreActivation.SIGMOID),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, {}, ScoreActivation.IDENTITY),
        ({"sbert_ce_default_activation_function": IDENTITY}, {}, ScoreActivation.IDENTITY),
        ({"sbert_ce_default_activation_function": SIGMOID}, {}, ScoreActivation.SIGMOID),
        ({"sbert_ce_default_activation_function": None}, {}, ScoreActivation.SIGMOID),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, {"activation_fn": SIGMOID}, ScoreActivation.SIGMOID),
        ({}, {"activation_fn": "torch.nn.Identity"}, ScoreActivation.IDENTITY),
    ],
)
def test_the_activation_is_what_the_configs_name(
    config: dict[str, Any], settings: dict[str, Any], expected: ScoreActivation
) -> None:
    assert read_activation(with_sentence(hub_checkpoint(config=config), settings=settings)) is expected


@pytest.mark.parametrize("path", ["torch.nn.modules.activation.Tanh", "my_package.Sigmoid", "Sigmoid", 5])
def test_another_activation_is_refused(path: Any) -> None:
    with pytest.raises(CheckpointError, match="sbert_ce_default_activation_function"):
        read_activation(hub_checkpoint(config={"sbert_ce_default_activation_function": path}))


@pytest.mark.parametrize(
    ("model_max_length", "max_seq_length", "expected"),
    [
        (None, None, 64),
        (40, None, 40),
        (40, 20, 20),
        (40, 50, 50),  # what sentence-transformers was told goes before the tokenizer's limit
        (int(1e30), None, 64),
        (1e30, None, 64),
        (100, None, 64),
        (True, None, 64),
    ],
)
def test_the_longest_text_is_the_lowest_limit(model_max_length: Any, max_seq_length: int | None, expected: int) -> None:
    checkpoint = replace(hub_checkpoint(), tokenizer_config={"model_max_length": model_max_length})
    assert read_max_tokens(with_sentence(checkpoint, max_tokens=max_seq_length), 64) == expected


@pytest.mark.parametrize(("value", "pooling"), [(None, Pooling.CLS), ("cls", Pooling.CLS), ("mean", Pooling.MEAN)])
def test_a_cross_encoder_pools_as_its_classifier_does(value: str | None, pooling: Pooling) -> None:
    checkpoint = hub_checkpoint("ModernBertForSequenceClassification", config={"classifier_pooling": value})
    assert read_profile(checkpoint, Task.RERANK, dim=1, max_tokens=8).pooling is pooling


def test_another_classifier_pooling_is_refused() -> None:
    checkpoint = hub_checkpoint("ModernBertForSequenceClassification", config={"classifier_pooling": "max"})
    with pytest.raises(CheckpointError, match="classifier_pooling"):
        read_profile(checkpoint, Task.RERANK, dim=1, max_tokens=8)
