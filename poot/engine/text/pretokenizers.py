"""How byte-level BPE vocabularies cut a text into words, by the name a GGUF file gives in tokenizer.ggml.pre.

What a name means is set by llama.cpp (src/llama-vocab.cpp, the table of pre-tokenizer types, and convert_hf_to_gguf.py,
which derives a name from how a model's tokenizer.json behaves). The expressions here are those of the models' own
tokenizer.json where that is known, since llama.cpp rewrites some for its own engine. Each pattern is applied to every
piece the one before left; what it matches and what lies between become pieces of their own.

A name that is not in the table is refused by the caller: a wrong cut gives plausible ids and a quietly worse model.
"""

from __future__ import annotations

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

# DeepSeek writes its classes out as ranges; \p{M} and \p{P}, \p{S} decide what clings to a word.
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼ"
    "ιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    "[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
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


_LLAMA3_KIND = Pretokenizer(patterns=(_LLAMA3,), takes_whole_words=True, adds_bos=True)
_LLAMA3_PLAIN = Pretokenizer(patterns=(_LLAMA3,))
_GPT2_KIND = Pretokenizer(patterns=(_GPT2,))
_DIGITS_KIND = Pretokenizer(patterns=_DIGITS_THEN_GPT2)
_QWEN2_PLAIN = Pretokenizer(patterns=(_QWEN2,))
_GPT4O_KIND = Pretokenizer(patterns=(_GPT4O,))

PRETOKENIZERS: dict[str, Pretokenizer] = {
    "default": Pretokenizer(patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3_KIND),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA3_PLAIN),
    **dict.fromkeys(
        (
            "gpt-2",
            "gpt2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "mellum",
        ),
        _GPT2_KIND,
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGITS_KIND
    ),
    "qwen2": Pretokenizer(patterns=(_QWEN2,), composes=True),
    "qwen35": Pretokenizer(patterns=(_QWEN35,), composes=True),
    **dict.fromkeys(("stablelm2", "deepseek-r1-qwen", "megrez", "hunyuan", "solar-open", "grok-2"), _QWEN2_PLAIN),
    "tekken": Pretokenizer(patterns=(_TEKKEN,), takes_whole_words=True, adds_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _GPT4O_KIND),
    "deepseek-llm": Pretokenizer(patterns=_DEEPSEEK_LLM),
    "deepseek-coder": Pretokenizer(patterns=_DEEPSEEK_CODER),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), Pretokenizer(patterns=_DEEPSEEK_V3)),
    "falcon": Pretokenizer(patterns=(r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
}
