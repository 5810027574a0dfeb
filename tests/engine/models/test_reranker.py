"""Decoders as rerankers, in every form they are saved in, against transformers and sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore

from poot.devices.encode import Pooling
from poot.engine.checkpoint import open_checkpoint
from poot.engine.encoding import ScoreActivation, score
from poot.engine.models.served import load_served
from poot.engine.models.task import Task, read_task
from poot.engine.text import load_tokenizer
from poot.errors import CheckpointError
from tests.engine.models.sentence_models import QWEN3, TEXTS, load, logits, make_tokenizer, randomized, save
from tests.engine.models.small_models import write_gguf
from tests.engine.text.makers import byte_level_metadata
from tests.fakes.reference_device import ReferenceDevice

QUERY = "which dog is lazy?"
TOLERANCE = 1e-5

# The model card of Qwen/Qwen3-Reranker-0.6B.
CARD_PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
CARD_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
CARD_TASK = "Given a web search query, retrieve relevant passages that answer the query"


def card_logits(model: Any, tokenizer: Any, query: str, documents: list[str], task: str = CARD_TASK) -> torch.Tensor:
    """yes minus no at the last token, tokenized as the model card does: prefix, pair and suffix on their own."""
    found = []
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    for document in documents:
        pair = f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}"
        ids = [part for text in (CARD_PREFIX, pair, CARD_SUFFIX) for part in tokenizer.encode(text)]
        with torch.inference_mode():
            last = model(torch.tensor([ids])).logits[0, -1]
        found.append(last[yes] - last[no])
    return torch.stack(found)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def reranker(request: pytest.FixtureRequest, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A Qwen3-Reranker as Qwen saves it, told by its directory's name alone, and transformers' model."""
    config = transformers.Qwen3Config(**QWEN3, tie_word_embeddings=request.param)
    model = randomized(transformers.Qwen3ForCausalLM(config))
    return model, save(model, tokenizer, tmp_path_factory.mktemp("models") / "Qwen3-Reranker-0.6B")


def test_scores_are_the_model_cards(reranker: Any, tokenizer: Any) -> None:
    model, folder = reranker
    served = load(folder)
    assert served.task is Task.RERANK
    assert served.decoder is None
    found = logits(served, QUERY, TEXTS)
    expected = card_logits(model, tokenizer, QUERY, TEXTS)
    assert (found - expected).abs().max() <= TOLERANCE
    profile = served.text_encoder(100).profile
    assert (profile.embeds, profile.dim, profile.pooling) == (False, 1, Pooling.LAST)
    # The card's score is yes under the softmax of both; ours is the sigmoid of the difference.
    assert profile.activation is ScoreActivation.SIGMOID
    softmax = torch.stack([torch.zeros_like(expected), expected]).softmax(0)[1]
    assert score(found.numpy(), profile.activation) == pytest.approx(softmax.numpy(), abs=1e-6)


def rename(folder: Path, tmp_path: Path, name: str = "model") -> Path:
    """The same files under another directory's name."""
    (tmp_path / name).mkdir()
    for file in folder.iterdir():
        (tmp_path / name / file.name).write_bytes(file.read_bytes())
    return tmp_path / name


def change_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


@pytest.mark.parametrize(
    "mark",
    [
        lambda folder: change_config(folder, is_original_qwen3_reranker=True),
        lambda folder: change_config(folder, classifier_from_token=["no", "yes"]),
        lambda folder: change_config(folder, _name_or_path="Qwen/Qwen3-Reranker-4B"),
        lambda folder: (folder / "README.md").write_text("---\na: b\n---\n# Qwen3-Reranker-8B\n"),
    ],
)
def test_other_signs_of_a_qwen3_reranker(reranker: Any, tmp_path: Path, mark: Callable[[Path], object]) -> None:
    folder = rename(reranker[1], tmp_path)
    assert read_task(open_checkpoint(folder)) is Task.GENERATE
    mark(folder)
    assert read_task(open_checkpoint(folder)) is Task.RERANK


def test_a_score_module_of_sentence_transformers_reranks(reranker: Any, tokenizer: Any, tmp_path: Path) -> None:
    model, folder = reranker
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    for false_id in (no, None):
        target = tmp_path / str(false_id)
        modules = [
            Transformer(str(folder), transformer_task="text-generation"),
            LogitScore(true_token_id=yes, false_token_id=false_id),
        ]
        CrossEncoder(modules=modules, prompts={"task": "Find it"}, default_prompt_name="task").save(str(target))
        served = load(target)
        assert served.task is Task.RERANK
        if false_id is not None:
            expected = card_logits(model, tokenizer, QUERY, TEXTS, "Find it")
            assert (logits(served, QUERY, TEXTS) - expected).abs().max() <= TOLERANCE


PAIR_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}<|im_start|>{{ m.content }}{% endif %}{% endfor %}"
    "<Query>: {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\n"
    "<Document>: {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}"
    "<|im_end|>{% if add_generation_prompt %}answer{% endif %}"
)


@pytest.mark.parametrize("options", [{}, {"processing_kwargs": {"chat_template": {"add_generation_prompt": True}}}])
def test_a_chat_template_for_pairs_is_rendered_as_sentence_transformers_does(
    tokenizer: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    config = transformers.LlamaConfig(**{key: value for key, value in QWEN3.items() if key != "head_dim"})
    folder = save(randomized(transformers.LlamaForCausalLM(config)), tokenizer, tmp_path / "llama")
    (folder / "chat_template.jinja").write_text(PAIR_TEMPLATE)
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    modules = [
        Transformer(str(folder), transformer_task="text-generation", **options),
        LogitScore(true_token_id=yes, false_token_id=no),
    ]
    model = CrossEncoder(modules=modules, prompts={"task": "Find it"}, default_prompt_name="task")
    model.save(str(tmp_path / "saved"))
    served = load(tmp_path / "saved")
    expected = model.predict(
        [(QUERY, text) for text in TEXTS], activation_fn=torch.nn.Identity(), convert_to_tensor=True
    )
    assert (logits(served, QUERY, TEXTS) - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "padding_id"),
    # 0 is the token that this tokenizer puts at the end: transformers then scores the one before it.
    [("Qwen3", 1), ("Llama", 1), ("Gemma2", 1), ("Qwen3", 0)],
)
def test_a_sequence_classifier_scores_its_last_token(tmp_path: Path, name: str, padding_id: int) -> None:
    arguments = {**QWEN3, "num_labels": 1, "pad_token_id": padding_id}
    config = getattr(transformers, f"{name}Config")(**arguments)
    model = randomized(getattr(transformers, f"{name}ForSequenceClassification")(config))
    tokenizer = make_tokenizer(adds_end=True)
    served = load(save(model, tokenizer, tmp_path / "model"))
    assert served.task is Task.RERANK
    pairs = tokenizer([QUERY] * len(TEXTS), TEXTS)["input_ids"]
    with torch.inference_mode():
        expected = torch.stack([model(torch.tensor([ids])).logits[0, 0] for ids in pairs])
    assert (logits(served, QUERY, TEXTS) - expected).abs().max() <= TOLERANCE


def test_a_qwen3_reranker_with_one_row_keeps_its_prompt(tokenizer: Any, tmp_path: Path) -> None:
    # Conversions to one score row, such as vLLM's, are named for the original and trained with the same prompt.
    config = transformers.Qwen3Config(**QWEN3, num_labels=1, pad_token_id=0)
    model = randomized(transformers.Qwen3ForSequenceClassification(config))
    served = load(save(model, tokenizer, tmp_path / "Qwen3-Reranker-0.6B-seq-cls"))
    (pair,) = served.text_encoder(500).pairs(QUERY, ["a"])
    text = f"{CARD_PREFIX}<Instruct>: {CARD_TASK}\n<Query>: {QUERY}\n<Document>: a{CARD_SUFFIX}"
    assert pair.token_ids.tolist() == tokenizer.encode(text)
    with torch.inference_mode():
        expected = model(torch.from_numpy(pair.token_ids)[None]).logits[0, 0]
    assert logits(served, QUERY, ["a"])[0] == pytest.approx(float(expected), abs=TOLERANCE)


def test_a_classifier_with_more_labels_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    config = transformers.Qwen3Config(**QWEN3, num_labels=3, pad_token_id=0)
    folder = save(transformers.Qwen3ForSequenceClassification(config), tokenizer, tmp_path / "model")
    with pytest.raises(CheckpointError, match="a classifier with 3 labels is not served"):
        load(folder)
    change_config(folder, id2label=None)  # transformers' default is two
    with pytest.raises(CheckpointError, match="a classifier with 2 labels is not served"):
        load(folder)


# As llama.cpp's converter writes it (convert_hf_to_gguf.py, Qwen3Model).
GGUF_TEMPLATE = f"{CARD_PREFIX}<Instruct>: {CARD_TASK}\n<Query>: {{query}}\n<Document>: {{document}}{CARD_SUFFIX}"


def write_reranker_gguf(
    folder: Path, tokenizer: Any, path: Path, *, labels: tuple[str, ...] = ("yes", "no"), **keys: Any
) -> Path:
    """A Qwen3-Reranker as llama.cpp's converter writes it: a head of two rows, its template, pooling type 4."""
    tensors = load_file(folder / "model.safetensors")
    head = tensors.pop("lm_head.weight", tensors["model.embed_tokens.weight"])
    plain = path.with_suffix(".plain.gguf")
    config = transformers.AutoConfig.from_pretrained(folder)
    write_gguf("QWEN3", config, tensors, plain)
    reader = gguf.GGUFReader(plain)
    writer = gguf.GGUFWriter(path, "qwen3")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            writer.add_key_value(field.name, field.contents(), field.types[0])
    metadata = {**byte_level_metadata(tokenizer.backend_tokenizer, pre="gpt-2"), "eos_token_id": 2}
    writer.add_tokenizer_model(metadata["model"])
    writer.add_tokenizer_pre(metadata["pre"])
    writer.add_token_list(metadata["tokens"])
    writer.add_token_types(metadata["token_type"])
    writer.add_token_merges(metadata["merges"])
    writer.add_pooling_type(gguf.PoolingType.RANK)
    writer.add_array("qwen3.classifier.output_labels", list(labels))
    writer.add_string("tokenizer.chat_template.rerank", keys.get("template", GGUF_TEMPLATE))
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    rows = head[tokenizer.convert_tokens_to_ids(list(labels))]
    writer.add_tensor("cls.output.weight", rows.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("labels", [("yes", "no"), ("no", "yes")])
def test_a_gguf_reranker_scores_as_its_safetensors(
    reranker: Any, tokenizer: Any, tmp_path: Path, labels: tuple[str, str]
) -> None:
    model, folder = reranker
    checkpoint = open_checkpoint(write_reranker_gguf(folder, tokenizer, tmp_path / "model.gguf", labels=labels))
    assert read_task(checkpoint) is Task.RERANK
    served = load_served(checkpoint, ReferenceDevice(), tokenizer=load_tokenizer(checkpoint), max_seq=512)
    expected = card_logits(model, tokenizer, QUERY, TEXTS)
    assert (logits(served, QUERY, TEXTS) - expected).abs().max() <= TOLERANCE


def test_a_gguf_template_without_both_texts_is_refused(reranker: Any, tokenizer: Any, tmp_path: Path) -> None:
    path = write_reranker_gguf(reranker[1], tokenizer, tmp_path / "model.gguf", template="{query} only")
    checkpoint = open_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"must hold \{query\} and then \{document\}"):
        load_served(checkpoint, ReferenceDevice(), tokenizer=load_tokenizer(checkpoint), max_seq=512)


def test_a_language_model_without_a_way_to_put_the_texts_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**{key: value for key, value in QWEN3.items() if key != "head_dim"})
    folder = save(transformers.LlamaForCausalLM(config), tokenizer, tmp_path / "llama")
    modules = [Transformer(str(folder), transformer_task="text-generation"), LogitScore(true_token_id=1)]
    CrossEncoder(modules=modules).save(str(tmp_path / "saved"))
    with pytest.raises(CheckpointError, match="does not render the roles query and document"):
        load(tmp_path / "saved")
