"""Whatever a checkpoint is, loaded: what sentence-transformers saves, embedded and compared with its own `encode`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from poot.devices import encode
from poot.engine.checkpoint import open_checkpoint
from poot.engine.models.served import load_served
from poot.engine.models.task import Task
from poot.errors import CheckpointError
from tests.engine.models import checkpoints
from tests.engine.models.sentence_models import (
    QWEN3,
    TEXTS,
    embeddings,
    load,
    make_tokenizer,
    randomized,
    reference,
    save,
)
from tests.engine.text.makers import chat_tokenizer
from tests.fakes.reference_device import ReferenceDevice

WIDTH = 48
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 with its head, whose tokenizer ends every text with <|endoftext|>, as Qwen3-Embedding's does."""
    model = randomized(transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**QWEN3)))
    return save(model, make_tokenizer(adds_end=True), tmp_path_factory.mktemp("models") / "qwen3")


def save_embedder(qwen3: Path, folder: Path, *modules: torch.nn.Module, **options: Any) -> SentenceTransformer:
    """sentence-transformers' model of these modules, saved to `folder` with only the base model's tensors."""
    torch.manual_seed(1)
    model = SentenceTransformer(modules=[Transformer(str(qwen3)), *modules], **options)
    model.save(str(folder))
    return model


@pytest.mark.parametrize("mode", ["lasttoken", "mean", "cls"])
def test_embeddings_are_sentence_transformers(qwen3: Path, tmp_path: Path, mode: Any) -> None:
    model = save_embedder(qwen3, tmp_path, Pooling(WIDTH, pooling_mode=mode), Normalize())
    served = load(tmp_path)
    assert served.task is Task.EMBED
    assert served.decoder is None
    assert (embeddings(served, TEXTS) - reference(model, TEXTS)).abs().max() <= TOLERANCE


@pytest.mark.parametrize(
    "activation", [torch.nn.Tanh(), torch.nn.Identity(), torch.nn.ReLU(), torch.nn.GELU(), torch.nn.SiLU()]
)
def test_dense_modules_are_sentence_transformers(qwen3: Path, tmp_path: Path, activation: Any) -> None:
    dense = (Dense(WIDTH, 20, activation_function=activation), Dense(20, 12, bias=False))
    model = save_embedder(qwen3, tmp_path, Pooling(WIDTH), *dense, Normalize())
    served = load(tmp_path)
    assert served.dim == 12
    assert (embeddings(served, TEXTS) - reference(model, TEXTS)).abs().max() <= TOLERANCE


def test_a_prompt_is_taken_in_or_left_out_as_sentence_transformers_does(qwen3: Path, tmp_path: Path) -> None:
    for includes in (True, False):
        folder = tmp_path / str(includes)
        model = save_embedder(qwen3, folder, Pooling(WIDTH, include_prompt=includes))
        found = embeddings(load(folder), TEXTS, prompt="find the dog: ")
        assert (found - reference(model, TEXTS, prompt="find the dog: ")).abs().max() <= TOLERANCE


def test_long_texts_are_cut_as_sentence_transformers_cuts_them(qwen3: Path, tmp_path: Path) -> None:
    model = save_embedder(qwen3, tmp_path, Pooling(WIDTH, pooling_mode="lasttoken"))
    model.max_seq_length = 11
    model.save(str(tmp_path))
    served = load(tmp_path)
    assert served.model_limit == 11
    assert served.text_encoder(11).texts([TEXTS[0]])[0].num_tokens > 11
    assert (embeddings(served, TEXTS) - reference(model, TEXTS)).abs().max() <= TOLERANCE


def test_a_shorter_length_is_sentence_transformers(qwen3: Path, tmp_path: Path) -> None:
    model = save_embedder(qwen3, tmp_path, Pooling(WIDTH), Normalize(), truncate_dim=16)
    served = load(tmp_path)
    assert (served.dim, served.text_encoder(9).profile.dim) == (16, 16)
    assert (embeddings(served, TEXTS) - reference(model, TEXTS)).abs().max() <= TOLERANCE


def test_a_decoder_saved_without_its_head_embeds(qwen3: Path, tmp_path: Path) -> None:
    base = transformers.Qwen3ForCausalLM.from_pretrained(qwen3).model
    served = load(save(base, make_tokenizer(adds_end=True), tmp_path))
    assert "embed_tokens.weight" in open_checkpoint(tmp_path).tensors
    assert served.task is Task.EMBED
    assert served.text_encoder(9).profile.pooling is encode.Pooling.LAST
    # sentence-transformers takes the last token only of architectures named ForCausalLM, the mean of others.
    with torch.inference_mode():
        ids = [text.token_ids.tolist() for text in served.text_encoder(512).texts(TEXTS)]
        last = torch.stack([base(torch.tensor([item])).last_hidden_state[0, -1] for item in ids])
    assert (embeddings(served, TEXTS) - torch.nn.functional.normalize(last, dim=-1)).abs().max() <= TOLERANCE


def test_a_decoder_without_sentence_transformers_files_embeds_as_it_would_load_it(qwen3: Path) -> None:
    served = load(qwen3)
    assert served.task is Task.GENERATE
    assert served.decoder is not None
    assert (embeddings(served, TEXTS) - reference(SentenceTransformer(str(qwen3)), TEXTS)).abs().max() <= TOLERANCE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"1_Pooling": {"embedding_dimension": 47}}, "Pooling expects vectors of 47"),
        ({"2_Dense": {"in_features": 20, "out_features": 48}}, "linear.weight has shape"),
    ],
)
def test_modules_that_do_not_fit_the_model_are_refused(
    qwen3: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    save_embedder(qwen3, tmp_path, Pooling(WIDTH), Dense(WIDTH, 20))
    for folder, fields in change.items():
        path = tmp_path / folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_a_dense_module_of_another_length_is_refused(qwen3: Path, tmp_path: Path) -> None:
    save_embedder(qwen3, tmp_path, Pooling(WIDTH), Dense(WIDTH, 20))
    Dense(24, 20).save(str(tmp_path / "2_Dense"))
    with pytest.raises(CheckpointError, match="a Dense module expects vectors of 24, not 48"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("pooling_type", "task", "pooling"),
    [
        (None, Task.GENERATE, encode.Pooling.LAST),
        (0, Task.GENERATE, encode.Pooling.LAST),
        (1, Task.EMBED, encode.Pooling.MEAN),
        (2, Task.EMBED, encode.Pooling.CLS),
        (3, Task.EMBED, encode.Pooling.LAST),
    ],
)
def test_a_ggufs_pooling_type_is_its_task(pooling_type: int | None, task: Task, pooling: encode.Pooling) -> None:
    checkpoint = checkpoints.gguf_checkpoint(metadata={} if pooling_type is None else {"pooling_type": pooling_type})
    served = load_served(checkpoint, ReferenceDevice(), tokenizer=chat_tokenizer(), max_seq=64)
    assert served.task is task
    assert (served.decoder is not None) == (task is Task.GENERATE)
    assert served.text_encoder(9).profile.pooling is pooling


@pytest.mark.parametrize("pooling_type", [5, -1, "mean"])
def test_an_unknown_pooling_type_is_refused(pooling_type: Any) -> None:
    checkpoint = checkpoints.gguf_checkpoint(metadata={"pooling_type": pooling_type})
    with pytest.raises(CheckpointError, match="pooling_type"):
        load_served(checkpoint, ReferenceDevice(), tokenizer=chat_tokenizer(), max_seq=64)


def test_a_gguf_that_ranks_needs_a_head_and_a_way_to_join_texts() -> None:
    checkpoint = checkpoints.gguf_checkpoint(metadata={"pooling_type": 4})
    with pytest.raises(CheckpointError, match="does not say how two texts are joined"):
        load_served(checkpoint, ReferenceDevice(), tokenizer=chat_tokenizer(), max_seq=64)
    checkpoint = dataclasses.replace(checkpoint, chat_templates={"rerank": "{query} {document}"})
    with pytest.raises(CheckpointError, match="without a score head"):
        load_served(checkpoint, ReferenceDevice(), tokenizer=chat_tokenizer(), max_seq=64)


@pytest.mark.parametrize("architecture", ["T5EncoderModel", "Qwen2VLForConditionalGeneration", "Unheard"])
def test_an_architecture_that_is_not_served_is_refused_by_name(architecture: str) -> None:
    checkpoint = checkpoints.hub_checkpoint(architecture)
    with pytest.raises(CheckpointError, match=architecture):
        load_served(checkpoint, ReferenceDevice(), tokenizer=chat_tokenizer(), max_seq=64)
