"""What sentence-transformers writes beside a model: which modules follow the transformer, and what they are told.

modules.json                        the pipeline: a Transformer, then Pooling, Dense, Normalize or LogitScore modules
N_Pooling/config.json               how token vectors become one, in either of two forms
N_Dense/config.json                 a linear map with an activation; its weights are in model.safetensors beside it
N_LogitScore/config.json            a reranker that reads the logits of one or two tokens
sentence_bert_config.json           max_seq_length and do_lower_case of the Transformer
config_sentence_transformers.json   prompts, a cross-encoder's activation, a shorter length of vectors

Formats as sentence-transformers 6.3 reads and writes them (`base/model.py`, `base/modules`, `cross_encoder/modules`,
`sentence_transformer/modules`), those of its releases since 2.0 included. A module that is not served is refused by its
type.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from poot.devices.base import Weight
from poot.engine.checkpoint.fields import ConfigReader, quote
from poot.engine.checkpoint.json_file import parse_json_object, read_json_object, read_text
from poot.engine.checkpoint.mapped_file import display_path, map_file
from poot.engine.checkpoint.safetensors import parse_safetensors
from poot.engine.checkpoint.sentence_modules import (
    DenseActivation,
    DenseModule,
    LogitScore,
    PoolingMode,
    PoolingModule,
    SentenceModules,
)
from poot.errors import CheckpointError

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"

# The Transformer's own file. The first releases named it after the architecture; each is read where it is found.
TRANSFORMER_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)

# No published pipeline has more than five.
MAX_MODULES = 16
MAX_FEATURES = 1 << 20
MAX_PROMPTS = 1024

# The older of the two forms of Pooling's config: one boolean for each mode.
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

_SENTENCE_EMBEDDING = "sentence_embedding"

# What the Transformer module computes: token vectors, labels or logits of tokens.
_TRANSFORMER_TASKS = ("feature-extraction", "sequence-classification", "text-generation")


def read_sentence_modules(path: Path) -> SentenceModules | None:
    """What sentence-transformers says of the model in the directory `path`; None without a modules.json.

    Without that file sentence-transformers reads none of the others either.

    Raises:
        CheckpointError: a file is malformed; a module, pooling mode or setting is not served, which it names.
    """
    if not os.path.lexists(path / MODULES_FILE):
        return None
    return _Reader(path).read()


class _Reader:
    """One directory's modules, gathered in their order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._where = display_path(path / MODULES_FILE)
        self._pooling: PoolingModule | None = None
        self._dense: list[DenseModule] = []
        self._normalizes = False
        self._logit_score: LogitScore | None = None

    def read(self) -> SentenceModules:
        settings_path = self._path / PROMPTS_FILE
        settings = read_json_object(settings_path) if os.path.lexists(settings_path) else {}
        reader = ConfigReader(settings, where=display_path(settings_path))
        kind = reader.optional_str("model_type", "SentenceTransformer", choices=("SentenceTransformer", "CrossEncoder"))
        modules = self._modules()
        (first_kind, transformer_path), *others = modules
        if first_kind != "Transformer":
            raise CheckpointError(f"the first module is {first_kind}; it must be Transformer", path=self._where)
        for name, place in others:
            self._take(name, self._path / place)
        is_cross_encoder = kind == "CrossEncoder"
        if is_cross_encoder and (self._pooling is not None or self._dense or self._normalizes):
            raise CheckpointError("a CrossEncoder with Pooling, Dense or Normalize is not served", path=self._where)
        if not is_cross_encoder and self._pooling is None and self._logit_score is None:
            raise CheckpointError("there is no Pooling module", path=self._where)
        if self._pooling is not None and self._logit_score is not None:
            raise CheckpointError("Pooling and LogitScore in one model are not served", path=self._where)
        transformer = _read_transformer(self._path / transformer_path)
        prompts = _read_prompts(reader)
        default_prompt = reader.optional_str("default_prompt_name", None)
        if default_prompt is not None and default_prompt not in prompts:
            raise reader.refuse("default_prompt_name", "the name of one of prompts")
        return SentenceModules(
            transformer_path=transformer_path,
            is_cross_encoder=is_cross_encoder or self._logit_score is not None,
            pooling=self._pooling,
            dense=tuple(self._dense),
            normalizes=self._normalizes,
            logit_score=self._logit_score,
            max_tokens=transformer.max_tokens,
            lowercases=transformer.lowercases,
            template_variables=transformer.template_variables,
            prompts={name: prompt for name, prompt in prompts.items() if prompt},
            prompt_names=frozenset(prompts),
            default_prompt=default_prompt if default_prompt and prompts[default_prompt] else None,
            truncate_dim=reader.optional_int("truncate_dim", None, minimum=1, maximum=MAX_FEATURES),
            settings=settings,
        )

    def _modules(self) -> list[tuple[str, str]]:
        """Kind and folder of every module."""
        # A list, where every other of these files is an object: wrapped, so that one reader's bounds hold for all.
        wrapped = parse_json_object(f'{{"modules": {read_text(self._path / MODULES_FILE)}}}', self._where)
        entries = wrapped["modules"]
        if not isinstance(entries, list) or not 0 < len(entries) <= MAX_MODULES:
            raise CheckpointError(f"must be a list of 1 to {MAX_MODULES} modules", path=self._where)
        found = []
        for index, entry in enumerate(entries):
            where = f"{self._where}: [{index}]"
            if not isinstance(entry, dict):
                raise CheckpointError("must be an object", path=where)
            reader = ConfigReader(entry, where=where)
            kind = reader.require_str("type")
            place = reader.require_str("path")
            pure = PurePosixPath(place)
            if pure.is_absolute() or ".." in pure.parts or "\\" in place or "\0" in place:
                raise reader.refuse("path", "a folder inside the model's directory")
            package, _, name = kind.rpartition(".")
            if package.split(".")[0] != "sentence_transformers" or name not in _KINDS:
                known = ", ".join(sorted(_KINDS))
                raise CheckpointError(f"module {quote(kind)} is not served; poot serves {known}", path=where)
            found.append((name, place))
        return found

    def _take(self, kind: str, folder: Path) -> None:
        if self._normalizes:
            raise CheckpointError(f"a {kind} module after Normalize is not served", path=self._where)
        if kind == "Pooling":
            if self._pooling is not None:
                raise CheckpointError("a second Pooling module is not served", path=self._where)
            self._pooling = _read_pooling(folder)
        elif kind == "Dense":
            if self._pooling is None:
                raise CheckpointError("a Dense module before Pooling is not served", path=self._where)
            self._dense.append(_read_dense(folder))
        elif kind == "Normalize":
            if self._pooling is None:
                raise CheckpointError("a Normalize module before Pooling is not served", path=self._where)
            _refuse_other_tensors(_optional_config(folder), default=_SENTENCE_EMBEDDING)
            self._normalizes = True
        elif kind == "LogitScore":
            self._logit_score = _read_logit_score(folder)
        else:
            raise CheckpointError(f"a second {kind} module is not served", path=self._where)


_KINDS = frozenset({"Transformer", "Pooling", "Dense", "Normalize", "LogitScore"})


def _optional_config(folder: Path) -> ConfigReader:
    file = folder / "config.json"
    return ConfigReader(read_json_object(file) if os.path.lexists(file) else {}, where=display_path(file))


def _read_pooling(folder: Path) -> PoolingModule:
    file = folder / "config.json"
    reader = ConfigReader(read_json_object(file), where=display_path(file))
    key = "embedding_dimension" if reader.has("embedding_dimension") else "word_embedding_dimension"
    return PoolingModule(
        mode=_pooling_mode(reader),
        features=reader.optional_int(key, None, minimum=1, maximum=MAX_FEATURES),
        include_prompt=reader.optional_bool("include_prompt", True),
    )


def _pooling_mode(reader: ConfigReader) -> PoolingMode:
    """The one mode of a Pooling config; sentence-transformers takes the mean where none is named."""
    value = reader.mapping.get("pooling_mode")
    if value is None:
        modes = [mode for flag, mode in _POOLING_FLAGS.items() if reader.optional_bool(flag, False)] or ["mean"]
    elif isinstance(value, str):
        modes = [value]
    else:
        modes = list(reader.string_list("pooling_mode"))
    served = {mode.value: mode for mode in PoolingMode}
    if len(modes) != 1 or modes[0] not in served:
        named = quote(" and ".join(modes))
        raise CheckpointError(
            f"pooling {named} is not served; poot serves one of {', '.join(served)}", path=reader.where
        )
    return served[modes[0]]


def _read_dense(folder: Path) -> DenseModule:
    file = folder / "config.json"
    reader = ConfigReader(read_json_object(file), where=display_path(file))
    in_features = reader.require_int("in_features", minimum=1, maximum=MAX_FEATURES)
    out_features = reader.require_int("out_features", minimum=1, maximum=MAX_FEATURES)
    has_bias = reader.optional_bool("bias", True)
    if reader.optional_bool("use_residual", False):
        raise reader.refuse("use_residual", "false: a residual connection is not served")
    _refuse_other_tensors(reader, default=_SENTENCE_EMBEDDING)
    weights_path = folder / "model.safetensors"
    where = display_path(weights_path)
    if not os.path.lexists(weights_path):
        raise CheckpointError("the Dense module has no model.safetensors; other formats are not read", path=where)
    tensors = dict(parse_safetensors(map_file(weights_path), where).tensors)
    weight = _take_tensor(tensors, "linear.weight", (out_features, in_features), where)
    bias = _take_tensor(tensors, "linear.bias", (out_features,), where) if has_bias else None
    if tensors:
        raise CheckpointError(f"tensor {quote(min(tensors))} is not part of a Dense module", path=where)
    return DenseModule(weight=weight, bias=bias, activation=_dense_activation(reader))


def _take_tensor(tensors: dict[str, Weight], name: str, shape: tuple[int, ...], where: str) -> Weight:
    weight = tensors.pop(name, None)
    if weight is None:
        raise CheckpointError(f"tensor {name} is missing", path=where)
    if weight.shape != shape:
        raise CheckpointError(f"tensor {name} has shape {list(weight.shape)}, not {list(shape)}", path=where)
    return weight


def _dense_activation(reader: ConfigReader) -> DenseActivation:
    """A dotted path of torch.nn; Tanh where the config names none, as in sentence-transformers."""
    path = reader.optional_str("activation_function", "torch.nn.modules.activation.Tanh")
    name = torch_class(path)
    served = {activation.value: activation for activation in DenseActivation}
    if name not in served:
        raise reader.refuse("activation_function", f"one of torch.nn's {', '.join(served)}")
    return served[name]


def torch_class(path: str) -> str | None:
    """The class of torch.nn that a dotted path names, or None for any other path."""
    package, _, name = path.rpartition(".")
    is_torch = package in ("torch.nn", "torch.nn.modules.activation", "torch.nn.modules.linear")
    return name if is_torch else None


def _refuse_other_tensors(reader: ConfigReader, *, default: str) -> None:
    """A module that reads or writes anything but the pooled vector belongs to another kind of model (ColBERT)."""
    for key in ("module_input_name", "module_output_name"):
        if reader.optional_str(key, default) != default:
            raise reader.refuse(key, default)


def _read_logit_score(folder: Path) -> LogitScore:
    file = folder / "config.json"
    reader = ConfigReader(read_json_object(file), where=display_path(file))
    if reader.optional_str("module_input_name", "causal_logits") != "causal_logits":
        raise reader.refuse("module_input_name", "causal_logits")
    return LogitScore(
        true_token_id=reader.require_int("true_token_id"), false_token_id=reader.optional_int("false_token_id", None)
    )


@dataclass(frozen=True, slots=True)
class _Transformer:
    """What sentence_bert_config.json says."""

    max_tokens: int | None = None
    lowercases: bool = False
    template_variables: Mapping[str, Any] = field(default_factory=dict)


def _read_transformer(folder: Path) -> _Transformer:
    for name in TRANSFORMER_FILES:
        file = folder / name
        if not os.path.lexists(file):
            continue
        reader = ConfigReader(read_json_object(file), where=display_path(file))
        reader.optional_str("transformer_task", None, choices=_TRANSFORMER_TASKS)
        variables: dict[str, Any] = {}
        if (processing := reader.optional_section("processing_kwargs")) is not None:
            for key, value in processing.mapping.items():
                if key != "chat_template" and value:
                    raise CheckpointError(f"processing_kwargs for {quote(key)} are not served", path=reader.where)
            if (template := processing.optional_section("chat_template")) is not None:
                variables = dict(template.mapping)
        return _Transformer(
            reader.optional_int("max_seq_length", None, minimum=1),
            reader.optional_bool("do_lower_case", False),
            variables,
        )
    return _Transformer()


def _read_prompts(reader: ConfigReader) -> dict[str, str]:
    section = reader.optional_section("prompts")
    if section is None:
        return {}
    if len(section.mapping) > MAX_PROMPTS:
        raise reader.refuse("prompts", f"an object of at most {MAX_PROMPTS} prompts")
    return {name: section.optional_str(name, "") for name in section.mapping}
