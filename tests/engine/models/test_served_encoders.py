"""Encoders as sentence-transformers saves them: embeddings and scores against its own `encode` and `predict`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from poot.devices import encode
from poot.engine.encoding import ScoreActivation, score
from poot.engine.models.task import Task
from poot.errors import CheckpointError
from tests.engine.models.sentence_models import TEXTS, embeddings, load, logits, randomized, reference, save
from tests.engine.text.test_text_encoder import bert
from tests.models import require_model

WIDTH = 24
TOLERANCE = 1e-5
QUERY = "which dog is lazy?"

BERT = {
    "vocab_size": 300,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 128,
}


def make_tokenizer(*, gives_types: bool = True) -> transformers.PreTrainedTokenizerFast:
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bert(),
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        **({"model_input_names": names} if gives_types else {}),
    )


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BertModel as transformers saves it."""
    model = randomized(transformers.BertModel(transformers.BertConfig(**BERT)))
    return save(model, make_tokenizer(), tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module", params=[True, False], ids=["types", "no types"])
def classifier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BertForSequenceClassification with one label, which says nothing of its activation."""
    config = transformers.BertConfig(**BERT, num_labels=1)
    model = randomized(transformers.BertForSequenceClassification(config))
    return save(model, make_tokenizer(gives_types=request.param), tmp_path_factory.mktemp("cross"))


def test_an_encoder_without_sentence_transformers_files_takes_the_mean(encoder: Path) -> None:
    served = load(encoder)
    assert (served.task, served.decoder, served.dim, served.model_limit) == (Task.EMBED, None, WIDTH, 128)
    assert served.text_encoder(9).profile.pooling is encode.Pooling.MEAN
    assert (embeddings(served, TEXTS) - reference(SentenceTransformer(str(encoder)), TEXTS)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken"])
def test_embeddings_are_sentence_transformers(encoder: Path, tmp_path: Path, mode: Any) -> None:
    torch.manual_seed(1)
    modules = [Transformer(str(encoder), max_seq_length=20), Pooling(WIDTH, pooling_mode=mode), Dense(WIDTH, 10)]
    model = SentenceTransformer(modules=[*modules, Normalize()])
    model.save(str(tmp_path))
    served = load(tmp_path)
    assert (served.dim, served.model_limit) == (10, 20)
    assert (embeddings(served, TEXTS) - reference(model, TEXTS)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("activation", [None, torch.nn.Identity(), torch.nn.Sigmoid()])
def test_scores_are_sentence_transformers(classifier: Path, tmp_path: Path, activation: Any) -> None:
    model = CrossEncoder(str(classifier), activation_fn=activation)
    if activation is None:
        folder = classifier
    else:
        folder = tmp_path
        model.save(str(folder))
    served = load(folder)
    assert (served.task, served.decoder, served.dim) == (Task.RERANK, None, 1)
    profile = served.text_encoder(9).profile
    is_identity = isinstance(activation, torch.nn.Identity)
    assert profile.activation is (ScoreActivation.IDENTITY if is_identity else ScoreActivation.SIGMOID)
    found = score(logits(served, QUERY, TEXTS).numpy(), profile.activation)
    assert found == pytest.approx(model.predict([(QUERY, text) for text in TEXTS]), abs=TOLERANCE)


def test_the_activation_of_older_releases_is_read(classifier: Path, tmp_path: Path) -> None:
    for file in classifier.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["sbert_ce_default_activation_function"] = "torch.nn.modules.linear.Identity"
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load(tmp_path).text_encoder(9).profile.activation is ScoreActivation.IDENTITY


def test_a_classifier_with_more_labels_is_refused(tmp_path: Path) -> None:
    config = transformers.BertConfig(**BERT, num_labels=3)
    save(transformers.BertForSequenceClassification(config), make_tokenizer(), tmp_path)
    with pytest.raises(CheckpointError, match="a classifier with 3 labels is not served"):
        load(tmp_path)


def test_the_real_model_gives_the_reference_vectors() -> None:
    data = Path(__file__).parents[2] / "data" / "all-minilm-l6-v2.json"
    entries = json.loads(data.read_text())
    served = load(require_model("minilm"))
    profile = served.text_encoder(256).profile
    assert (served.task, served.dim, served.model_limit) == (Task.EMBED, 384, 256)
    assert (profile.pooling, profile.dimensions, profile.any_dimension) == (encode.Pooling.MEAN, (), False)
    found = embeddings(served, [entry["text"] for entry in entries])
    expected = torch.tensor([entry["embedding"] for entry in entries])
    assert torch.cosine_similarity(found, expected).min() >= 0.99999
