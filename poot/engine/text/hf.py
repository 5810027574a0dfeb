"""tokenizer.json: the `tokenizers` library's own file, with special tokens given their internal names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers

from poot.engine.checkpoint.fields import ConfigReader, quote
from poot.engine.checkpoint.types import Checkpoint
from poot.engine.text.end_tokens import WELL_KNOWN_END_TOKENS, find_end_tokens
from poot.engine.text.library import build
from poot.engine.text.special import SpecialTokens
from poot.engine.text.tokenizer import PairSurroundings, TokenizerParts
from poot.engine.text.vocabulary import PieceStyle, Vocabulary
from poot.errors import CheckpointError

# Ids past this are not read: the file is JSON, so a tiny one could ask for a table of any size.
MAX_TOKENS = 4_000_000

# The longest added tokens of published models are runs of spaces; none comes near.
MAX_ADDED_CHARACTERS = 1024

# What surrounds the ids of a text is what the post-processor adds; the first of these that has any is taken.
_PROBES = ("a", "0", ".", " ", "東")


@dataclass(frozen=True)
class _AddedTokens:
    """added_tokens of the file: by text, special or not; those matched only after normalising set apart."""

    special: dict[str, int]
    ordinary: dict[str, int]
    normalized: dict[str, int]


def read_hf_tokenizer(checkpoint: Checkpoint) -> TokenizerParts:
    """A tokenizer from the text of tokenizer.json, tokenizer_config.json and the configs' token ids.

    Truncation and padding that the file may ask for are switched off. What surrounds a text is what the file's
    post-processor adds; add_bos_token and add_eos_token of tokenizer_config.json, where present, overrule it.

    Raises:
        CheckpointError: the file is absent or malformed, or of a kind whose tokens cannot be decoded one by one.
    """
    where = f"{checkpoint.path}/tokenizer.json"
    if checkpoint.tokenizer_json is None:
        raise CheckpointError("there is no tokenizer.json", path=str(checkpoint.path))
    content = _parse(checkpoint.tokenizer_json, where)
    if checkpoint.sentence is not None and checkpoint.sentence.lowercases:
        _lowercase(content)
    _add_named_tokens(content, checkpoint.tokenizer_config, where)
    added = _read_added_tokens(content, where)
    special_tokens = build(lambda: SpecialTokens(added.special, added.ordinary), where=where)
    library = build(lambda: _build_library(content, special_tokens), where=where)
    pieces = _read_pieces(library, special_tokens, where)
    ids = {**added.normalized, **added.ordinary, **added.special}
    literal_ids = [*added.ordinary.values(), *added.normalized.values()]
    vocabulary = Vocabulary(
        pieces, _find_style(content, where), special_ids=added.special.values(), literal_ids=literal_ids
    )
    variables = _read_variables(checkpoint.tokenizer_config)
    token_ids = {text: token_id for token_id, text in enumerate(pieces) if text is not None} | ids
    bos_id = _find_id(checkpoint, "bos", variables, token_ids)
    eos_id = token_ids.get(variables.get("eos_token", ""))
    prefix, suffix = build(lambda: _surroundings(library), where=where)
    named = [*_named_end_ids(checkpoint, len(pieces)), *([] if eos_id is None else [eos_id])]
    config = ConfigReader(checkpoint.tokenizer_config, where=f"{checkpoint.path}/tokenizer_config.json")
    pair = build(lambda: _pair_surroundings(library), where=where)
    if pair is not None and not _gives_types(config):
        pair = pair.without_types()
    processed = (prefix, suffix)
    prefix = _overrule(config, "add_bos_token", "bos_token", bos_id, prefix)
    suffix = _overrule(config, "add_eos_token", "eos_token", eos_id, suffix)
    return TokenizerParts(
        library=library,
        vocabulary=vocabulary,
        special_tokens=special_tokens,
        prefix_ids=prefix,
        suffix_ids=suffix,
        # Where the config overrules the post-processor for one text, nobody has said what it means for two.
        pair=pair if processed == (prefix, suffix) else None,
        bos_id=bos_id,
        eos_ids=find_end_tokens(named, ids),
        variables=variables,
    )


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not JSON: {error}", path=where) from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise CheckpointError("not a tokenizer: there is no object named model", path=where)
    return content


def _lowercase(content: dict[str, Any]) -> None:
    """Lowers texts before all other normalization, as sentence-transformers does for do_lower_case."""
    normalizer = content.get("normalizer")
    lowercase = {"type": "Lowercase"}
    content["normalizer"] = (
        {"type": "Sequence", "normalizers": [lowercase, normalizer]} if isinstance(normalizer, dict) else lowercase
    )


def _add_named_tokens(content: dict[str, Any], config: Mapping[str, Any], where: str) -> None:
    """Makes special what tokenizer_config.json calls so, as Hugging Face's tokenizers do when they load.

    These are bos_token and the like, additional_special_tokens, and added_tokens_decoder's entries marked special.
    Names that the vocabulary lacks are left out: a model has no embedding for them.
    """
    entries = content["added_tokens"] = content.get("added_tokens") or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise CheckpointError("added_tokens must be a list of objects", path=where)
    named = {*_read_variables(config).values(), *_further_special_tokens(config)}
    for entry in entries:
        if isinstance(entry.get("content"), str) and entry["content"] in named:
            entry["special"] = True
            named.discard(entry["content"])
    vocab = content["model"].get("vocab")
    ids = vocab if isinstance(vocab, dict) else {}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    found = sorted((ids[text], text) for text in named if type(ids.get(text)) is int)
    entries.extend({"id": token_id, "content": text, "special": True, **flags} for token_id, text in found)


def _further_special_tokens(config: Mapping[str, Any]) -> Iterator[str]:
    listed = config.get("additional_special_tokens")
    decoder = config.get("added_tokens_decoder")
    values = [*(listed if isinstance(listed, list) else [])]
    values += [value for value in (decoder.values() if isinstance(decoder, Mapping) else ()) if _is_special(value)]
    for value in values:
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            yield text


def _is_special(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("special") is True


def _read_added_tokens(content: dict[str, Any], where: str) -> _AddedTokens:
    added = _AddedTokens({}, {}, {})
    for index, entry in enumerate(content["added_tokens"]):
        reader = ConfigReader(entry, where=f"{where}: added_tokens[{index}]")
        text = reader.require_str("content")
        token_id = reader.require_int("id", maximum=MAX_TOKENS)
        if not 0 < len(text) <= MAX_ADDED_CHARACTERS:
            message = f"content has {len(text)} characters; 1 to {MAX_ADDED_CHARACTERS} are read"
            raise CheckpointError(message, path=reader.where)
        if reader.optional_bool("special", False) or text in WELL_KNOWN_END_TOKENS:
            added.special[text] = token_id
        elif reader.optional_bool("normalized", False):
            added.normalized[text] = token_id
        else:
            added.ordinary[text] = token_id
    return added


def _build_library(content: dict[str, Any], special_tokens: SpecialTokens) -> tokenizers.Tokenizer:
    names = special_tokens.names
    for entry in content["added_tokens"]:
        if entry["content"] in names:
            entry.update(content=names[entry["content"]], normalized=False, special=True)
    _rename_model(content["model"], names)
    content["truncation"] = content["padding"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(content, ensure_ascii=False))


def _rename_model(model: dict[str, Any], names: Mapping[str, str]) -> None:
    """Puts internal names into the model's vocabulary, and drops merges that would grow a special token from text."""
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(text, text): token_id for text, token_id in vocab.items()}
    elif isinstance(vocab, list):  # Unigram: pairs of piece and score
        model["vocab"] = [[names.get(piece, piece), *rest] for piece, *rest in vocab]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    merges = model.get("merges")
    if isinstance(merges, list) and names:
        pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges]
        model["merges"] = [
            pair for pair in pairs if pair[0] not in names and pair[1] not in names and pair[0] + pair[1] not in names
        ]


def _read_pieces(library: tokenizers.Tokenizer, special_tokens: SpecialTokens, where: str) -> list[str | None]:
    """Every id's piece, special tokens by their text; None where the file leaves an id out."""
    ids = library.get_vocab(with_added_tokens=True)
    largest = max(ids.values(), default=-1)
    if not 0 <= largest < MAX_TOKENS:
        raise CheckpointError(f"the largest token id is {largest}; 0 to {MAX_TOKENS - 1} are read", path=where)
    pieces: list[str | None] = [None] * (largest + 1)
    for text, token_id in ids.items():
        pieces[token_id] = text
    for text, token_id in special_tokens.special.items():
        name = special_tokens.names[text]
        if ids.get(name) != token_id:
            message = f"added token {quote(text)} has id {token_id}, but the vocabulary makes it {ids.get(name)}"
            raise CheckpointError(message, path=where)
        pieces[token_id] = text
    return pieces


def _find_style(content: dict[str, Any], where: str) -> PieceStyle:
    """How the file's decoder turns a piece into text, token by token."""
    decoders = {str(decoder.get("type")): decoder for decoder in _walk(content.get("decoder"))}
    if "ByteLevel" in decoders:
        return PieceStyle.BYTE_LEVEL
    if "WordPiece" in decoders:
        if decoders["WordPiece"].get("prefix", "##") != "##":
            raise CheckpointError("decoder WordPiece with a prefix other than ## is not supported", path=where)
        return PieceStyle.WORDPIECE_CONTINUED
    unsupported = sorted(set(decoders) - _SENTENCEPIECE_DECODERS)
    if unsupported:
        raise CheckpointError(f"decoder {', '.join(unsupported)} is not supported", path=where)
    return PieceStyle.SENTENCEPIECE if decoders else PieceStyle.PLAIN


# "▁" to a space, bytes to characters, and the stripping that is not for a continued text.
_SENTENCEPIECE_DECODERS = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


def _walk(decoder: Any) -> Iterator[dict[str, Any]]:
    if isinstance(decoder, dict):
        if decoder.get("type") == "Sequence":
            for inner in decoder.get("decoders") or []:
                yield from _walk(inner)
        else:
            yield decoder


def _surroundings(library: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before and after one text."""
    for probe in _PROBES:
        inner = library.encode(probe, add_special_tokens=False).ids
        outer = library.encode(probe, add_special_tokens=True).ids
        for start in range(len(outer) - len(inner) + 1) if inner else ():
            if outer[start : start + len(inner)] == inner:
                return tuple(outer[:start]), tuple(outer[start + len(inner) :])
    raise ValueError("no text has tokens that its post-processor leaves alone")


def _pair_surroundings(library: tokenizers.Tokenizer) -> PairSurroundings | None:
    """What the post-processor puts around two texts; None where it puts the second text first, or mixes them."""
    for probe in _PROBES:
        inner = library.encode(probe, add_special_tokens=False).ids
        outer = library.encode(probe, probe, add_special_tokens=True)
        if not inner:
            continue
        # Which tokens are of the first and the second text: special ones are of none.
        places = [index for index, sequence in enumerate(outer.sequence_ids) if sequence is not None]
        size = len(inner)
        if [outer.ids[place] for place in places] != inner + inner:
            continue
        first, second = places[:size], places[size:]
        if first[-1] - first[0] != size - 1 or second[-1] - second[0] != size - 1 or second[0] < first[-1]:
            return None
        before, between, after = slice(0, first[0]), slice(first[-1] + 1, second[0]), slice(second[-1] + 1, None)
        return PairSurroundings(
            prefix_ids=tuple(outer.ids[before]),
            middle_ids=tuple(outer.ids[between]),
            suffix_ids=tuple(outer.ids[after]),
            prefix_types=tuple(outer.type_ids[before]),
            first_type=outer.type_ids[first[0]],
            middle_types=tuple(outer.type_ids[between]),
            second_type=outer.type_ids[second[0]],
            suffix_types=tuple(outer.type_ids[after]),
        )
    return None


def _gives_types(config: ConfigReader) -> bool:
    """Whether the model was given the post-processor's token types, and not zeros.

    model_input_names says; where it is absent, transformers gave them up to its fifth release, whose own class of
    tokenizer does not.
    """
    if config.has("model_input_names"):
        return "token_type_ids" in config.string_list("model_input_names")
    return config.optional_str("tokenizer_class", "") != "TokenizersBackend"


def _overrule(
    config: ConfigReader, flag: str, name: str, token_id: int | None, processed: tuple[int, ...]
) -> tuple[int, ...]:
    """`processed`, unless tokenizer_config.json says outright whether the token is added."""
    asked = config.optional_bool(flag, None)
    if asked is None or (asked and token_id is not None and token_id in processed):
        return processed
    if not asked:
        return tuple(item for item in processed if item != token_id)
    if token_id is None:
        raise CheckpointError(f"{flag} is true and {name} names no token", path=config.where)
    return (token_id,)


def _read_variables(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token and the like, as text; tokenizer_config.json writes each as a string or an object."""
    variables = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(text, str):
            variables[name] = text
    return variables


def _find_id(checkpoint: Checkpoint, name: str, variables: Mapping[str, str], ids: Mapping[str, int]) -> int | None:
    """The id of bos_token, else bos_token_id of config.json, where it names a token."""
    text = variables.get(f"{name}_token")
    if text is not None:
        return ids.get(text)
    token_id = checkpoint.config.get(f"{name}_token_id")
    return token_id if type(token_id) is int and token_id in ids.values() else None


def _named_end_ids(checkpoint: Checkpoint, num_tokens: int) -> list[int]:
    """eos_token_id of generation_config.json and config.json: none, one or a list each.

    Ids past the vocabulary are dropped: some configs name the token of a larger sibling.
    """
    found: list[int] = []
    for config in (checkpoint.generation_config, checkpoint.config):
        value = config.get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        found.extend(item for item in values if type(item) is int and 0 <= item < num_tokens)
    return found
