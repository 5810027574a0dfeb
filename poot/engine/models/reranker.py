"""Decoders as rerankers: one row that scores the last token, and the prompt that a query and a document stand in.

Three forms are served. A sequence classifier has the row (`score.weight`). A GGUF with pooling type RANK has it, or two
labelled yes and no (`cls.output.weight`). A language model (Qwen3-Reranker, sentence-transformers' LogitScore) has a
head of a row for each token, of which two are used.

Two rows make one: the softmax over two logits is the sigmoid of their difference, so the difference of the rows gives
the logit, for the price of one row (Qwen3-Reranker's model card; vLLM converts it likewise).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from poot.devices.base import Weight
from poot.devices.formats import Format
from poot.devices.kernels.dequantize import dequantize
from poot.engine.checkpoint.fields import ConfigReader, quote
from poot.engine.checkpoint.mapped_file import display_path
from poot.engine.checkpoint.types import Checkpoint, FileFormat
from poot.engine.models.causal import as_causal, is_decoder
from poot.engine.models.registry import read_spec
from poot.engine.models.task import (
    CLASSIFIER_SUFFIX,
    GgufPooling,
    is_qwen3_reranker,
    names_qwen3_reranker,
    read_gguf_pooling,
)
from poot.engine.models.tensors import decoder_tensors
from poot.engine.text.template import ChatTemplate
from poot.engine.text.text_encoder import JoinedPairs, PairWriter, PromptedPairs, split_template
from poot.engine.text.tokenizer import PairSurroundings, Tokenizer
from poot.errors import BadRequest, CheckpointError

# Qwen3-Reranker's prompt and its instruction where none is given (model card of Qwen/Qwen3-Reranker-0.6B; the same
# text is what llama.cpp's converter stores as tokenizer.chat_template.rerank).
QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
QWEN3_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}\n'
    "<Query>: "
)
QWEN3_BETWEEN = "\n<Document>: "
QWEN3_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"

# Where llama.cpp keeps a reranker's prompt, with {query} and {document} in it.
GGUF_TEMPLATE = "rerank"

# Stand for the texts while a chat template is rendered once; noncharacters, so that no template has them.
_QUERY_MARK, _DOCUMENT_MARK = "\ufdd0query\ufdd1", "\ufdd0document\ufdd1"


def read_score_row(checkpoint: Checkpoint, tokenizer: Tokenizer) -> tuple[Weight, Weight | None]:
    """The row `[1, hidden_size]` that turns the last token's hidden state into a logit, and its bias `[1]` or None.

    Raises:
        CheckpointError: the checkpoint has no such row, or one of another shape.
    """
    where = display_path(checkpoint.path)
    if checkpoint.sentence is not None and checkpoint.sentence.logit_score is not None:
        score = checkpoint.sentence.logit_score
        return _head_row(checkpoint, score.true_token_id, score.false_token_id), None
    if checkpoint.architecture.endswith(CLASSIFIER_SUFFIX):
        return _row(checkpoint, "score.weight"), None
    if read_gguf_pooling(checkpoint) is GgufPooling.RANK and "cls.output.weight" in checkpoint.tensors:
        return _gguf_row(checkpoint), checkpoint.tensors.get("cls.output.bias")
    if is_qwen3_reranker(checkpoint):
        return _head_row(checkpoint, _single_id(tokenizer, "yes", where), _single_id(tokenizer, "no", where)), None
    raise CheckpointError("a reranker without a score head (cls.output.weight)", path=where)


def read_pair_writer(checkpoint: Checkpoint, tokenizer: Tokenizer, *, cuts_left: bool = False) -> PairWriter:
    """How the reranker `checkpoint` reads a query and a document.

    A prompt that the files hold comes first: GGUF's rerank template, or a chat template that renders the roles query
    and document (sentence-transformers' CrossEncoder). Then Qwen3-Reranker's documented one; else the two texts are
    joined as the tokenizer joins pairs.

    Raises:
        CheckpointError: a template that does not hold query and document once each, or no way to join two texts.
    """
    where = display_path(checkpoint.path)
    prompt = ""
    if checkpoint.sentence is not None and checkpoint.sentence.default_prompt is not None:
        prompt = checkpoint.sentence.prompts[checkpoint.sentence.default_prompt]
    template = checkpoint.chat_templates.get(GGUF_TEMPLATE)
    if checkpoint.file_format is FileFormat.GGUF and template is not None:
        parts = split_template(template, "{query}", "{document}")
        if parts is None:
            raise CheckpointError("the rerank template must hold {query} and then {document}, once each", path=where)
        return _prompted(tokenizer, parts)
    is_language_model = checkpoint.sentence is not None and checkpoint.sentence.logit_score is not None
    if is_language_model and (parts := _rendered(checkpoint, tokenizer, prompt)) is not None:
        return _prompted(tokenizer, parts)
    if names_qwen3_reranker(checkpoint) or (is_language_model and checkpoint.architecture == "Qwen3ForCausalLM"):
        before = QWEN3_BEFORE.replace("{instruction}", prompt or QWEN3_INSTRUCTION)
        return _prompted(tokenizer, (before, QWEN3_BETWEEN, QWEN3_AFTER))
    if is_language_model:
        raise CheckpointError("the chat template does not render the roles query and document", path=where)
    if tokenizer.pair is None:
        raise CheckpointError("the tokenizer does not say how two texts are joined", path=where)
    surroundings = _without_padding(checkpoint, tokenizer.pair) if is_decoder(checkpoint) else tokenizer.pair
    return JoinedPairs(tokenizer=tokenizer, surroundings=surroundings, prompt=prompt, cuts_left=cuts_left)


def _without_padding(checkpoint: Checkpoint, pair: PairSurroundings) -> PairSurroundings:
    """`pair` without padding tokens at its end.

    transformers scores the last token that is not pad_token_id, even where the tokenizer ends texts with that token; in
    a decoder no token sees what comes after it, so those are as good as absent.
    """
    padding_id = checkpoint.config.get("pad_token_id")
    count = len(pair.suffix_ids)
    while count and pair.suffix_ids[count - 1] == padding_id:
        count -= 1
    return replace(pair, suffix_ids=pair.suffix_ids[:count], suffix_types=pair.suffix_types[:count])


def _prompted(tokenizer: Tokenizer, parts: tuple[str, str, str]) -> PromptedPairs:
    before, between, after = parts
    return PromptedPairs(tokenizer=tokenizer, before=before, between=between, after=after)


def _rendered(checkpoint: Checkpoint, tokenizer: Tokenizer, prompt: str) -> tuple[str, str, str] | None:
    """The chat template's text around a query and a document; None where it does not put each in once."""
    if checkpoint.chat_template is None:
        return None
    template = ChatTemplate(checkpoint.chat_template, path=display_path(checkpoint.path))
    messages = [{"role": "query", "content": _QUERY_MARK}, {"role": "document", "content": _DOCUMENT_MARK}]
    if prompt:
        messages.insert(0, {"role": "system", "content": prompt})
    given = {} if checkpoint.sentence is None else dict(checkpoint.sentence.template_variables)
    adds_prompt = given.pop("add_generation_prompt", False) is True
    try:
        rendered = template.render(
            messages, add_generation_prompt=adds_prompt, variables={**tokenizer.variables, **given}
        )
    except BadRequest:  # a template for other roles
        return None
    return split_template(rendered, _QUERY_MARK, _DOCUMENT_MARK)


def _single_id(tokenizer: Tokenizer, word: str, where: str) -> int:
    ids = tokenizer.encode(word, add_special=False, parse_special=False)
    if len(ids) != 1:
        raise CheckpointError(f"the tokenizer has no single token for {word!r}", path=where)
    return ids[0]


def _head_row(checkpoint: Checkpoint, true_id: int, false_id: int | None) -> Weight:
    """The language model's head reduced to one row: that of `true_id`, less that of `false_id`."""
    plain = as_causal(checkpoint, keeps_head=True)
    spec = read_spec(plain)
    names = decoder_tensors(spec, checkpoint.file_format)
    where = display_path(checkpoint.path)
    if spec.final_softcap is not None:
        raise CheckpointError("a reranker whose logits are soft-capped is not served", path=where)
    head = plain.tensors.get(names.output_head or names.token_embedding)
    if head is None or head.shape != (spec.vocab_size, spec.hidden_size):
        raise CheckpointError(
            "the language model's head is missing or of another shape than the config says", path=where
        )
    ids = [true_id] if false_id is None else [true_id, false_id]
    if max(ids) >= spec.vocab_size:
        raise CheckpointError(f"token {max(ids)} is not in the vocabulary of {spec.vocab_size}", path=where)
    rows = _unpacked(head, ids)
    return _score_weight((rows[0] if false_id is None else rows[0] - rows[1]) * spec.logits_multiplier)


def _row(checkpoint: Checkpoint, name: str) -> Weight:
    weight = checkpoint.tensors.get(name)
    if weight is None or len(weight.shape) != 2 or weight.shape[0] != 1:
        raise CheckpointError(f"tensor {name} is missing or not one row", path=display_path(checkpoint.path))
    return weight


def _gguf_row(checkpoint: Checkpoint) -> Weight:
    """One row as it is; of two, those of yes and no, the difference."""
    weight = checkpoint.tensors["cls.output.weight"]
    reader = ConfigReader(checkpoint.config, where=display_path(checkpoint.path))
    if len(weight.shape) != 2:
        raise CheckpointError("tensor cls.output.weight is not a matrix", path=reader.where)
    if weight.shape[0] == 1:
        return weight
    key = f"{checkpoint.architecture}.classifier.output_labels"
    labels = reader.string_list(key) if reader.has(key) else ()
    if weight.shape[0] != 2 or sorted(labels) != ["no", "yes"] or "cls.output.bias" in checkpoint.tensors:
        raise CheckpointError(
            f"cls.output.weight has {weight.shape[0]} rows and {quote(labels)} of labels; a reranker has one row, or "
            "those of yes and no",
            path=reader.where,
        )
    rows = _unpacked(weight, [labels.index("yes"), labels.index("no")])
    return _score_weight(rows[0] - rows[1])


def _unpacked(weight: Weight, rows: list[int]) -> torch.Tensor:
    """Rows of a matrix of any format as f32."""
    return dequantize(weight.format, weight.data[rows].contiguous())


def _score_weight(row: torch.Tensor) -> Weight:
    return Weight("score.weight", (1, len(row)), Format.F32, row.reshape(1, -1).contiguous())
