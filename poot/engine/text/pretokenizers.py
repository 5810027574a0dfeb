"""How byte-level BPE vocabularies cut a text into words, by the name a GGUF file gives in tokenizer.ggml.pre.

What a name means is set by llama.cpp (src/llama-vocab.cpp, the table of pre-tokenizer types, and convert_hf_to_gguf.py,
which derives a name from how a model's tokenizer.json behaves). The expressions here are those of the models' own
tokenizer.json where that is known, since llama.cpp rewrites some for its own engine. Each pattern is applied to every
piece the one before left; what it matches and what lies between become pieces of their own.

A name that is not in the table is refused by the caller: a wrong cut gives plausible ids and a quietly worse model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)

# Words whose capital letters come first or not at all, so that "HelloWorld" falls in two.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
_SYMBOLS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}|{_SYMBOLS_AND_SLASHES}|{_SPACES}"
_GPT4O = (
    rf"{_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_START}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_SYMBOLS_AND_SLASHES}|{_SPACES}"
)

_JAIS2 = _LLAMA3.replace(
    r"|\s+(?!\S)|\s+",
    "".join(rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")) + r"|\s{1}",
)
_SEED_CODER = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_MINICPM5 = (r"\p{N}{1,3}", rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_SPACES}")
_EXAONE_MOE = (
    rf"{_CONTRACTIONS}|{_START}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"

# DeepSeek's own classes, by code point: several of these characters have a twin of the same look elsewhere.
_DEEPSEEK_RANGES = """
    B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5
    3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15
    1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC
    1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D
    212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B
    A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB
    10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""
_DEEPSEEK_LETTERS = "A-Za-z" + "".join(re.sub("[0-9A-F]+", r"\\x{\g<0>}", item) for item in _DEEPSEEK_RANGES.split())
_DEEPSEEK_CJK = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
    r"\s+$",
    _DEEPSEEK_CJK,
    r"\p{N}",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)

_DIGITS_THEN_GPT2 = (r"\p{N}", _GPT2)


@dataclass(frozen=True, kw_only=True)
class Pretokenizer:
    """How one kind of vocabulary cuts a text.

    Attributes:
        patterns: Oniguruma expressions, applied in order.
        takes_whole_words: a word that is in the vocabulary is one token, whatever the merges say.
        adds_bos: whether BOS is put first where the file does not say.
        composes: whether the text is put into Unicode normal form C first, as the models' own tokenizers do.
    """

    patterns: tuple[str, ...]
    takes_whole_words: bool = False
    adds_bos: bool = False
    composes: bool = False


_NAMES: dict[Pretokenizer, tuple[str, ...]] = {
    Pretokenizer(patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")): ("default",),
    Pretokenizer(patterns=(_LLAMA3,), takes_whole_words=True, adds_bos=True): (
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0"),
    ),
    Pretokenizer(patterns=(_LLAMA3,)): ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
    Pretokenizer(patterns=(_GPT2,)): (
        *("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "gigachat"),
        *("mellum", "a.x-4.0"),
    ),
    Pretokenizer(patterns=_DIGITS_THEN_GPT2): (
        *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ),
    Pretokenizer(patterns=(_QWEN2,), composes=True): ("qwen2",),
    Pretokenizer(patterns=(_QWEN35,), composes=True): ("qwen35",),
    Pretokenizer(patterns=(_QWEN2,)): (
        *("stablelm2", "deepseek-r1-qwen", "megrez", "hunyuan", "solar-open", "grok-2", "kormo", "f2llmv2"),
    ),
    Pretokenizer(patterns=(_TEKKEN,), takes_whole_words=True, adds_bos=True): ("tekken",),
    Pretokenizer(patterns=(_GPT4O,)): ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
    Pretokenizer(patterns=_DEEPSEEK_LLM): ("deepseek-llm",),
    Pretokenizer(patterns=_DEEPSEEK_CODER): ("deepseek-coder",),
    Pretokenizer(patterns=_DEEPSEEK_V3): ("deepseek-v3", "hunyuan-dense"),
    Pretokenizer(patterns=(r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")): ("falcon",),
    Pretokenizer(patterns=(_JAIS2,)): ("jais-2",),
    Pretokenizer(patterns=(_SEED_CODER,)): ("seed-coder",),
    Pretokenizer(patterns=(_BAILING,)): ("bailingmoe", "bailingmoe2", "llada-moe"),
    Pretokenizer(patterns=_MINICPM5, takes_whole_words=True): ("minicpm5",),
    Pretokenizer(patterns=(_EXAONE_MOE,)): ("exaone-moe",),
    Pretokenizer(patterns=(_BLOOM,)): ("bloom", "poro-chat", "gpt3-finnish"),
    Pretokenizer(patterns=(_BLOOM, r"\p{N}")): ("viking",),
}

PRETOKENIZERS: dict[str, Pretokenizer] = {name: kind for kind, names in _NAMES.items() for name in names}
