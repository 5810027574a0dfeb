"""The files of sentence-transformers: what its own `save` writes, what older releases wrote, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from poot.engine.checkpoint import open_checkpoint
from poot.engine.checkpoint.sentence_modules import DenseActivation, PoolingMode, SentenceModules
from poot.errors import CheckpointError
from tests.engine.text.makers import train_wordpiece
from tests.models import require_model

WIDTH = 12


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BertModel and its tokenizer, as transformers saves them."""
    folder = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=300,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        num_labels=1,
    )
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=train_wordpiece(), unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(bert: Path, tmp_path: Path) -> Path:
    """A directory of the first releases' form: mean pooling, then a normalized Dense."""
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(bert / name)
    write(
        tmp_path / "modules.json",
        [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
            {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
        ],
    )
    write(
        tmp_path / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": WIDTH,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    )
    write(
        tmp_path / "2_Dense" / "config.json",
        {
            "in_features": WIDTH,
            "out_features": 4,
            "bias": True,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )
    save_file(
        {"linear.weight": torch.ones(4, WIDTH), "linear.bias": torch.zeros(4)},
        tmp_path / "2_Dense" / "model.safetensors",
    )
    return tmp_path


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def change(path: Path, **fields: Any) -> None:
    """Replaces fields of the JSON object at `path`; None removes one."""
    content = json.loads(path.read_text()) if path.exists() else {}
    content.update(fields)
    write(path, {key: value for key, value in content.items() if value is not None})


def read(path: Path) -> SentenceModules:
    sentence = open_checkpoint(path).sentence
    assert sentence is not None
    return sentence


def test_what_sentence_transformers_saves_is_read_back(bert: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(
        modules=[
            Transformer(str(bert), max_seq_length=40),
            Pooling(WIDTH, pooling_mode="lasttoken", include_prompt=False),
            Dense(WIDTH, 6, activation_function=torch.nn.GELU()),
            Dense(6, 5, bias=False),
            Normalize(),
        ],
        prompts={"query": "query: ", "passage": "passage: ", "plain": ""},
        default_prompt_name="passage",
        truncate_dim=3,
    )
    model.save(str(tmp_path))
    sentence = read(tmp_path)
    assert sentence.pooling is not None
    assert (sentence.pooling.mode, sentence.pooling.features) == (PoolingMode.LAST, WIDTH)
    assert not sentence.pooling.include_prompt
    first, second = sentence.dense
    assert (first.in_features, first.out_features, first.activation) == (WIDTH, 6, DenseActivation.GELU)
    assert first.bias is not None
    assert torch.equal(first.weight.data, model.state_dict()["2.linear.weight"])
    assert (second.out_features, second.activation, second.bias) == (5, DenseActivation.TANH, None)
    assert sentence.normalizes
    assert sentence.prompts == {"query": "query: ", "passage": "passage: "}
    assert sentence.prompt_names >= {"query", "passage", "plain", "document"}
    assert (sentence.default_prompt, sentence.truncate_dim) == ("passage", 3)
    assert not sentence.is_cross_encoder
    assert open_checkpoint(tmp_path).tokenizer_config["model_max_length"] == 40
    assert open_checkpoint(tmp_path).card_title is not None


def test_a_saved_cross_encoder_says_so(bert: Path, tmp_path: Path) -> None:
    CrossEncoder(str(bert), num_labels=1, activation_fn=torch.nn.Identity()).save(str(tmp_path))
    sentence = read(tmp_path)
    assert sentence.is_cross_encoder
    assert sentence.pooling is None
    assert sentence.settings["activation_fn"] == "torch.nn.modules.linear.Identity"


def test_the_first_releases_form_is_read(folder: Path) -> None:
    write(folder / "sentence_bert_config.json", {"max_seq_length": 20, "do_lower_case": True})
    sentence = read(folder)
    assert sentence.pooling is not None
    assert (sentence.pooling.mode, sentence.pooling.include_prompt) == (PoolingMode.MEAN, True)
    assert (sentence.max_tokens, sentence.lowercases, sentence.normalizes) == (20, True, True)


def test_the_real_model_is_read() -> None:
    sentence = read(require_model("minilm"))
    assert sentence.pooling is not None
    assert (sentence.pooling.mode, sentence.pooling.features) == (PoolingMode.MEAN, 384)
    assert (sentence.max_tokens, sentence.lowercases, sentence.normalizes) == (256, False, True)


def test_a_directory_without_modules_has_none(bert: Path) -> None:
    assert open_checkpoint(bert).sentence is None


def test_the_transformer_may_lie_in_a_folder_of_its_own(folder: Path, bert: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / "0_Transformer").mkdir(exist_ok=True)
        (folder / name).rename(folder / "0_Transformer" / name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    write(folder / "modules.json", modules)
    write(folder / "0_Transformer" / "sentence_bert_config.json", {"max_seq_length": 21})
    checkpoint = open_checkpoint(folder)
    assert checkpoint.path == folder
    assert checkpoint.architecture == "BertModel"
    assert checkpoint.tokenizer_json == (bert / "tokenizer.json").read_text()
    assert checkpoint.sentence is not None
    assert checkpoint.sentence.max_tokens == 21


@pytest.mark.parametrize(
    "kind",
    [
        "sentence_transformers.models.WeightedLayerPooling",
        "sentence_transformers.models.LSTM",
        "sentence_transformers.base.modules.router.Router",
        "custom_st.Transformer",
        "custom_st.Pooling",
    ],
)
def test_an_unknown_module_is_refused_by_name(folder: Path, kind: str) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = kind
    write(folder / "modules.json", modules)
    with pytest.raises(CheckpointError, match=kind):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}, "'max' is not served"),
        ({"pooling_mode_cls_token": True}, "'cls and mean' is not served"),
        ({"pooling_mode": "weightedmean"}, "'weightedmean' is not served"),
        ({"pooling_mode": ["mean", "max"]}, "'mean and max' is not served"),
        ({"pooling_mode": "sum"}, "'sum' is not served"),
    ],
)
def test_other_pooling_is_refused_by_name(folder: Path, fields: dict[str, Any], message: str) -> None:
    change(folder / "1_Pooling" / "config.json", **fields)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_pooling_without_a_mode_is_the_mean(folder: Path) -> None:
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": False})
    pooling = read(folder).pooling
    assert pooling is not None
    assert pooling.mode is PoolingMode.MEAN
    assert Pooling.load(str(folder / "1_Pooling")).pooling_mode == "mean"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.Softmax"}, "activation_function"),
        ({"activation_function": "my_package.Tanh"}, "activation_function"),
        ({"use_residual": True}, "use_residual"),
        ({"module_input_name": "token_embeddings"}, "module_input_name"),
        ({"out_features": 5}, "linear.weight has shape"),
        ({"bias": False}, "linear.bias"),
    ],
)
def test_other_dense_modules_are_refused(folder: Path, fields: dict[str, Any], message: str) -> None:
    change(folder / "2_Dense" / "config.json", **fields)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_a_dense_module_with_pickled_weights_is_refused(folder: Path) -> None:
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([1, 0, 2, 3], "first module is Pooling"),
        ([0, 2, 1, 3], "Dense module before Pooling"),
        ([0, 1, 3, 2], "Dense module after Normalize"),
        ([0], "no Pooling module"),
        ([0, 1, 1], "second Pooling"),
        ([], "1 to 16 modules"),
    ],
)
def test_modules_in_another_order_are_refused(folder: Path, order: list[int], message: str) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    write(folder / "modules.json", [modules[index] for index in order])
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


@pytest.mark.parametrize("path", ["../other", "/etc", "a/../../b", "a\\b"])
def test_a_module_outside_the_directory_is_refused(folder: Path, path: str) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    write(folder / "modules.json", modules)
    with pytest.raises(CheckpointError, match="path is"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "SparseEncoder"}, "model_type"),
        ({"default_prompt_name": "missing"}, "default_prompt_name"),
        ({"prompts": {"query": 1}}, "query is 1"),
        ({"truncate_dim": 0}, "truncate_dim"),
    ],
)
def test_settings_that_are_wrong_or_not_served_are_refused(folder: Path, fields: dict[str, Any], message: str) -> None:
    write(folder / "config_sentence_transformers.json", fields)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"type": 1, "path": ""}]', '[{"path": ""}]', "[", '{"a": ['])
def test_a_malformed_list_of_modules_is_refused(folder: Path, text: str) -> None:
    (folder / "modules.json").write_text(text)
    with pytest.raises(CheckpointError):
        open_checkpoint(folder)


def test_the_cards_title_is_its_first_heading(folder: Path) -> None:
    (folder / "README.md").write_text("---\nlicense: mit\n---\n\ntext\n# Qwen3-Reranker-0.6B\n# Other\n")
    assert open_checkpoint(folder).card_title == "Qwen3-Reranker-0.6B"
    (folder / "README.md").write_bytes(b"# \xff")
    assert open_checkpoint(folder).card_title is None
