"""How a model is sampled where a request does not say: by its own file where that does, else as OpenAI's API does.

The rule: temperature, top_p, top_k, min_p and repetition_penalty of generation_config.json, or of GGUF's
general.sampling.*, count where they are named. `"do_sample": false` says that the model is meant to be greedy, whatever
stands beside it; where it is absent nothing is read into that, although transformers would be greedy then: the files of
most chat models leave it out. A request's own fields go before all of it, one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

from poot.engine.checkpoint.fields import ConfigReader
from poot.engine.checkpoint.mapped_file import display_path
from poot.engine.checkpoint.types import Checkpoint, FileFormat

_GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}

_SMALLEST = 1e-6  # of the ranges that leave 0 out


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingDefaults:
    """What a request's unset fields mean. The values given here are OpenAI's, or off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def read_sampling_defaults(checkpoint: Checkpoint) -> SamplingDefaults:
    """The defaults of one model.

    Raises:
        CheckpointError: a value of another type, or outside what a request may ask for.
    """
    is_gguf = checkpoint.file_format is FileFormat.GGUF
    where = display_path(checkpoint.path)
    reader = ConfigReader(
        checkpoint.config if is_gguf else checkpoint.generation_config,
        where=where if is_gguf else f"{where}/generation_config.json",
    )
    keys = _GGUF_KEYS if is_gguf else {name: name for name in _GGUF_KEYS}
    if not is_gguf and not reader.optional_bool("do_sample", True):
        return SamplingDefaults(temperature=0.0)
    return SamplingDefaults(
        temperature=reader.optional_float(keys["temperature"], 1.0, minimum=0, maximum=2),
        top_p=reader.optional_float(keys["top_p"], 1.0, minimum=_SMALLEST, maximum=1),
        # -1 is how vLLM writes that it is off.
        top_k=max(0, reader.optional_int(keys["top_k"], 0, minimum=-1)),
        min_p=reader.optional_float(keys["min_p"], 0.0, minimum=0, maximum=1),
        repetition_penalty=reader.optional_float(keys["repetition_penalty"], 1.0, minimum=_SMALLEST, maximum=10),
    )
