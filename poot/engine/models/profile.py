"""What a model does with texts, read from its files: pooling, shorter vectors, prompts, a cross-encoder's activation.

Shorter vectors (Matryoshka, Kusupati et al. 2022, arXiv 2205.13147) are served only where a config declares them: the
lengths of `matryoshka_dimensions`, any length where `is_matryoshka` is true (both as vLLM reads them, in config.json
or config_sentence_transformers.json).
"""

from __future__ import annotations

from poot.devices.encode import Pooling
from poot.engine.checkpoint.fields import ConfigReader
from poot.engine.checkpoint.mapped_file import display_path
from poot.engine.checkpoint.sentence_modules import PoolingMode, SentenceModules
from poot.engine.checkpoint.sentence_transformers import PROMPTS_FILE, torch_class
from poot.engine.checkpoint.types import Checkpoint, FileFormat
from poot.engine.encoding import EncodeProfile, ScoreActivation
from poot.engine.models.causal import is_decoder
from poot.engine.models.task import GgufPooling, Task, read_gguf_pooling

# tokenizer_config.json's model_max_length is 1e30 where there is no limit.
_LARGEST_LIMIT = 10**9

_POOLING = {PoolingMode.MEAN: Pooling.MEAN, PoolingMode.CLS: Pooling.CLS, PoolingMode.LAST: Pooling.LAST}
_GGUF_POOLING = {
    GgufPooling.MEAN: Pooling.MEAN,
    GgufPooling.CLS: Pooling.CLS,
    GgufPooling.LAST: Pooling.LAST,
}

# The names that sentence-transformers' encode_query and encode_document look for, in this order.
QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")

_ACTIVATIONS = {"Sigmoid": ScoreActivation.SIGMOID, "Identity": ScoreActivation.IDENTITY}


def read_profile(checkpoint: Checkpoint, task: Task, *, dim: int, max_tokens: int) -> EncodeProfile:
    """The profile of `checkpoint`.

    Args:
        dim: features of the model's vectors.
        max_tokens: most tokens of a text, as the plan settled it.

    Raises:
        CheckpointError: a setting that is malformed or not served.
    """
    sentence = checkpoint.sentence or SentenceModules()
    if task is Task.RERANK:
        return EncodeProfile(
            embeds=False,
            dim=1,
            max_tokens=max_tokens,
            pooling=read_pooling(checkpoint, task),
            activation=read_activation(checkpoint),
        )
    dimensions, any_dimension = _read_dimensions(checkpoint, dim)
    return EncodeProfile(
        embeds=True,
        dim=dim,
        max_tokens=max_tokens,
        pooling=read_pooling(checkpoint, task),
        dimensions=dimensions,
        any_dimension=any_dimension,
        prompts=sentence.prompts,
        default_prompt=sentence.default_prompt,
        query_prompt=_first_prompt(sentence, QUERY_PROMPTS),
        document_prompt=_first_prompt(sentence, DOCUMENT_PROMPTS),
    )


def read_pooling(checkpoint: Checkpoint, task: Task) -> Pooling:
    """How the model's vectors are pooled.

    Its own Pooling module or GGUF pooling type decides. Where there is neither: a decoder's last token, as
    sentence-transformers and vLLM do; the mean for an encoder, as sentence-transformers does (llama.cpp then pools
    nothing and gives a vector for each token). A reranker that is a decoder scores its last token, one that is an
    encoder its first, or the mean where its config says so (ModernBERT's classifier_pooling).

    Raises:
        CheckpointError: a pooling that is not served.
    """
    if task is Task.RERANK:
        return Pooling.LAST if is_decoder(checkpoint) else _classifier_pooling(checkpoint)
    if checkpoint.sentence is not None and checkpoint.sentence.pooling is not None:
        return _POOLING[checkpoint.sentence.pooling.mode]
    gguf_pooling = read_gguf_pooling(checkpoint)
    if gguf_pooling in _GGUF_POOLING:
        return _GGUF_POOLING[gguf_pooling]
    return Pooling.LAST if is_decoder(checkpoint) else Pooling.MEAN


def _classifier_pooling(checkpoint: Checkpoint) -> Pooling:
    if checkpoint.file_format is FileFormat.GGUF:
        return Pooling.CLS
    reader = ConfigReader(checkpoint.config, where=display_path(checkpoint.path))
    return Pooling(reader.optional_str("classifier_pooling", "cls", choices=("cls", "mean")))


def read_max_tokens(checkpoint: Checkpoint, max_positions: int) -> int:
    """The most tokens a text may have by the model's own limits, special tokens included.

    max_seq_length of sentence-transformers' Transformer, else the tokenizer's model_max_length; never more than the
    model has positions for.
    """
    limits = [max_positions]
    if checkpoint.sentence is not None and checkpoint.sentence.max_tokens is not None:
        limits.append(checkpoint.sentence.max_tokens)
    else:
        stated = checkpoint.tokenizer_config.get("model_max_length")
        if isinstance(stated, (int, float)) and not isinstance(stated, bool) and 1 <= stated < _LARGEST_LIMIT:
            limits.append(int(stated))
    return min(limits)


def read_activation(checkpoint: Checkpoint) -> ScoreActivation:
    """What a cross-encoder's config makes of its logit; the sigmoid where it names nothing.

    In the order sentence-transformers looks: activation_fn of config_sentence_transformers.json, of config.json's
    `sentence_transformers`, and the key of its releases before 4.0.

    Raises:
        CheckpointError: another activation.
    """
    where = display_path(checkpoint.path)
    config = ConfigReader({} if checkpoint.file_format is FileFormat.GGUF else checkpoint.config, where=where)
    settings = checkpoint.sentence.settings if checkpoint.sentence is not None else {}
    section = config.optional_section("sentence_transformers")
    candidates = [
        (ConfigReader(settings, where=f"{where}: {PROMPTS_FILE}"), "activation_fn"),
        *([] if section is None else [(section, "activation_fn")]),
        (config, "sbert_ce_default_activation_function"),
    ]
    for reader, key in candidates:
        path = reader.optional_str(key, None)
        if path is not None:
            activation = _ACTIVATIONS.get(torch_class(path) or "")
            if activation is None:
                raise reader.refuse(key, "torch.nn's Sigmoid or Identity")
            return activation
    return ScoreActivation.SIGMOID


def _read_dimensions(checkpoint: Checkpoint, dim: int) -> tuple[tuple[int, ...], bool]:
    where = display_path(checkpoint.path)
    settings = checkpoint.sentence.settings if checkpoint.sentence is not None else {}
    lengths: set[int] = set()
    any_dimension = False
    for mapping in (settings, {} if checkpoint.file_format is FileFormat.GGUF else checkpoint.config):
        reader = ConfigReader(mapping, where=where)
        if reader.has("matryoshka_dimensions"):
            lengths.update(reader.int_list("matryoshka_dimensions", minimum=1))
        any_dimension = reader.optional_bool("is_matryoshka", False) or any_dimension
    # A list says which lengths the model was trained for, and goes before the flag.
    return tuple(sorted(length for length in lengths if length <= dim)), any_dimension and not lengths


def _first_prompt(sentence: SentenceModules, names: tuple[str, ...]) -> str | None:
    """The first of `names` that the file has; an empty prompt under it means none."""
    name = next((name for name in names if name in sentence.prompt_names), None)
    return name if name in sentence.prompts else None
