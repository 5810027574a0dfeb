"""The tokenizer metadata that every kind of GGUF vocabulary shares, read and checked.

Keys as in the GGUF specification (ggml-org/ggml docs/gguf.md, "Tokenizer") and gguf-py's constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from poot.engine.checkpoint.fields import ConfigReader
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.text.end_tokens import WELL_KNOWN_END_TOKENS, find_end_tokens
from poot.errors import CheckpointError

KEY = "tokenizer.ggml."

# No published vocabulary has a million tokens; the bound keeps a hostile file from costing minutes.
MAX_TOKENS = 4_000_000

# The longest pieces of published vocabularies, runs of spaces or dashes, have some 128 characters.
MAX_TOKEN_CHARACTERS = 1024


class TokenType(IntEnum):
    """tokenizer.ggml.token_type, after SentencePiece's piece types."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# The names chat templates know the special ids by.
_VARIABLES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
    "seperator": "sep_token",  # spelled so in the format
    "cls": "cls_token",
    "mask": "mask_token",
}


@dataclass(frozen=True, kw_only=True)
class GgufVocabulary:
    """Tokens of a GGUF file.

    Attributes:
        reader: typed access to the metadata.
        tokens: text by id, no two alike.
        ids: id by text.
        types: type by id.
        special: text and id of control and unknown tokens.
        user_defined: text and id of added tokens that are text.
        stripping: special tokens that swallow white space after them.
    """

    reader: ConfigReader
    tokens: list[str]
    ids: Mapping[str, int]
    types: list[int]
    special: Mapping[str, int]
    user_defined: Mapping[str, int]
    stripping: frozenset[str]

    def special_id(self, name: str, default: int | None = None) -> int | None:
        """The id at tokenizer.ggml.`name`_token_id; `default`, where in range, if absent.

        Raises:
            CheckpointError: the id is not in the vocabulary.
        """
        key = f"{KEY}{name}_token_id"
        if self.reader.has(key):
            return self.reader.require_int(key, maximum=len(self.tokens) - 1)
        return default if default is not None and default < len(self.tokens) else None

    def end_ids(self, default_eos: int | None = None) -> frozenset[int]:
        """The ids that end a generation (see `end_tokens`)."""
        named = (self.special_id("eos", default_eos), self.special_id("eot"), self.special_id("eom"))
        return find_end_tokens((item for item in named if item is not None), {**self.user_defined, **self.special})

    def variables(self, **defaults: int) -> dict[str, str]:
        """bos_token and the like, for chat templates; `defaults` are ids by GGUF's name of the token."""
        found = {variable: self.special_id(name, defaults.get(name)) for name, variable in _VARIABLES.items()}
        return {variable: self.tokens[item] for variable, item in found.items() if item is not None}

    def added(self, name: str, default: bool, token_id: int | None) -> tuple[int, ...]:
        """The token that tokenizer.ggml.add_`name`_token asks for, as a tuple of none or one.

        Raises:
            CheckpointError: the file asks for a token that it does not name.
        """
        key = f"{KEY}add_{name}_token"
        if not self.reader.optional_bool(key, default):
            return ()
        if token_id is None:
            message = f"{key} is true and {KEY}{name}_token_id names no token of the vocabulary"
            raise CheckpointError(message, path=self.reader.where)
        return (token_id,)


def read_gguf_vocabulary(checkpoint: Checkpoint) -> GgufVocabulary:
    """The vocabulary of a GGUF file.

    Raises:
        CheckpointError: a list is missing, has the wrong length or a wrong type in it, or a token appears twice.
    """
    reader = ConfigReader(checkpoint.config, where=str(checkpoint.path))
    tokens = list(reader.string_list(f"{KEY}tokens"))
    if not 0 < len(tokens) <= MAX_TOKENS:
        raise CheckpointError(f"{KEY}tokens has {len(tokens)} entries; 1 to {MAX_TOKENS} are read", path=reader.where)
    types = _read_types(reader, len(tokens))
    ids: dict[str, int] = {}
    for token_id, text in enumerate(tokens):
        if not text:  # an id without text, kept apart from every other
            text = tokens[token_id] = f"[EMPTY_{token_id}]"
        if len(text) > MAX_TOKEN_CHARACTERS:
            message = f"{KEY}tokens[{token_id}] has {len(text)} characters; up to {MAX_TOKEN_CHARACTERS} are read"
            raise CheckpointError(message, path=reader.where)
        if ids.setdefault(text, token_id) != token_id:
            message = f"{KEY}tokens has the same text at {ids[text]} and {token_id}"
            raise CheckpointError(message, path=reader.where)
    special = {
        tokens[token_id]: token_id
        for token_id, kind in enumerate(types)
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN)
    }
    user_defined = {tokens[token_id]: token_id for token_id, kind in enumerate(types) if kind == TokenType.USER_DEFINED}
    for text in WELL_KNOWN_END_TOKENS:  # some converters call them user-defined; they end a turn all the same
        if text in user_defined:
            special[text] = user_defined.pop(text)
    return GgufVocabulary(
        reader=reader,
        tokens=tokens,
        ids=ids,
        types=types,
        special=special,
        user_defined=user_defined,
        stripping=_find_stripping(reader, special),
    )


def _find_stripping(reader: ConfigReader, special: Mapping[str, int]) -> frozenset[str]:
    """The special tokens that swallow white space after them, which GGUF has no key for.

    Phi-3's do (rstrip in its tokenizer.json), so that its template's line ends are no tokens; as in llama.cpp they are
    told by the model's name (src/llama-vocab.cpp, per-token attributes).
    """
    name = reader.optional_str("general.name", "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    return frozenset(special) - {"<unk>", "<s>", "<|endoftext|>"}


def _read_types(reader: ConfigReader, num_tokens: int) -> list[int]:
    key = f"{KEY}token_type"
    if not reader.has(key):
        return [TokenType.NORMAL] * num_tokens
    return list(reader.int_list(key, length=num_tokens))
