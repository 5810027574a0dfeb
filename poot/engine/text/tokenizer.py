"""Text to token ids and back, the same for every kind of model file.

A `Tokenizer` is built by one module per source (hf, gguf_bpe, gguf_spm, gguf_wordpiece) around one object of the
`tokenizers` library whose state never changes after loading; every method may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import tokenizers

from poot.engine.text.detokenizer import Detokenizer
from poot.engine.text.fim_tokens import FimTokens
from poot.engine.text.library import is_library_failure
from poot.engine.text.special import SpecialTokens
from poot.engine.text.vocabulary import Vocabulary
from poot.errors import BadRequest, EngineError


@dataclass(frozen=True, kw_only=True, slots=True)
class PairSurroundings:
    """What a model expects around two texts that it reads as one: prefix, first, middle, second, suffix.

    Attributes:
        prefix_types, middle_types, suffix_types: a token type for each of those ids.
        first_type, second_type: the token type of each text's own tokens.
    """

    prefix_ids: tuple[int, ...]
    middle_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    prefix_types: tuple[int, ...]
    first_type: int
    middle_types: tuple[int, ...]
    second_type: int
    suffix_types: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens that are no text's."""
        return len(self.prefix_ids) + len(self.middle_ids) + len(self.suffix_ids)

    def without_types(self) -> PairSurroundings:
        """The same with token type 0 everywhere."""
        return replace(
            self,
            prefix_types=(0,) * len(self.prefix_ids),
            first_type=0,
            middle_types=(0,) * len(self.middle_ids),
            second_type=0,
            suffix_types=(0,) * len(self.suffix_ids),
        )


@dataclass(frozen=True, kw_only=True)
class TokenizerParts:
    """What a source module reads from its file.

    Attributes:
        library: encodes text in which special tokens go by their internal names.
        vocabulary: what each id stands for.
        special_tokens: the added tokens.
        prefix_ids, suffix_ids: what surrounds one text (BOS, EOS, [CLS], [SEP]).
        pair: what surrounds two texts, or None where the file does not say.
        bos_id: the beginning-of-sequence token, whether or not it is added; None where the model has none.
        eos_ids: tokens that end a generation.
        variables: bos_token and the like, as chat templates expect them.
    """

    library: tokenizers.Tokenizer
    vocabulary: Vocabulary
    special_tokens: SpecialTokens
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    pair: PairSurroundings | None = None
    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    variables: Mapping[str, str] = field(default_factory=dict)


class Tokenizer:
    """One model's tokenizer.

    Attributes:
        vocabulary: what each id stands for.
        special_tokens: where special tokens stand in a text.
        pair: what surrounds two texts that are read as one, or None where the file does not say.
        bos_id: the beginning-of-sequence token, or None.
        eos_ids: tokens that end a generation: end of sequence and end of turn.
        variables: bos_token and the like, for chat templates.
        fim: the marks of fill-in-the-middle, None where the model has none or nobody looked.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._library = parts.library
        self.vocabulary = parts.vocabulary
        self.special_tokens = parts.special_tokens
        self.pair = parts.pair
        self.bos_id = parts.bos_id
        self.eos_ids = parts.eos_ids
        self.variables = dict(parts.variables)
        self._prefix_ids = list(parts.prefix_ids)
        self._suffix_ids = list(parts.suffix_ids)
        self.fim: FimTokens | None = None

    @property
    def vocab_size(self) -> int:
        """How many ids the tokenizer knows; a model's output may be padded beyond it."""
        return len(self.vocabulary)

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """What `encode` with add_special puts before the ids of a text."""
        return tuple(self._prefix_ids)

    @property
    def suffix_ids(self) -> tuple[int, ...]:
        """What `encode` with add_special puts after the ids of a text."""
        return tuple(self._suffix_ids)

    @property
    def adds_bos(self) -> bool:
        """Whether `encode` with add_special begins with the BOS token, so that even an empty text has a token."""
        return bool(self._prefix_ids) and self._prefix_ids[0] == self.bos_id

    @property
    def adds_eos(self) -> bool:
        """Whether `encode` with add_special ends with a token that ends a sequence."""
        return bool(self._suffix_ids)

    def encode(self, text: str, *, add_special: bool, parse_special: bool = True) -> list[int]:
        """The token ids of `text`.

        Args:
            text: any text; holds the caller's thread for about 0.5 s a MiB, with the interpreter free meanwhile.
            add_special: surround the ids with what the model expects around one text, such as BOS. A text that spells
                its own BOS gets the second one all the same, as in Hugging Face's tokenizers and vLLM.
            parse_special: whether the text of a special token becomes that token, as is right for a raw prompt, or
                stays text. Added tokens that are not special (such as "<think>" in many models) are matched always.

        Raises:
            BadRequest: the text holds a lone surrogate.
            EngineError: the model's tokenizer is broken in a way that loading did not show.
        """
        refuse_surrogates(text)
        ids = self._encode_marked(self.special_tokens.mark(text) if parse_special else text)
        return [*self._prefix_ids, *ids, *self._suffix_ids] if add_special else ids

    def encode_guarded(self, rendered: str, guard: str) -> list[int]:
        """The token ids of a rendered chat, in which `guard` stands inside special tokens that a client spelled.

        A special token without a guard inside is the template's and becomes that token; then guards are dropped, and
        the text around them is encoded without a seam. The BOS token is put first where the model expects it and the
        template did not write it; nothing is added at the end, where generation begins.

        Raises:
            BadRequest: the text holds a lone surrogate.
        """
        refuse_surrogates(rendered)
        ids = self._encode_marked(self.special_tokens.mark(rendered).replace(guard, ""))
        if self.adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each of `texts`, nothing around them; all cores work on a batch, with the interpreter free.

        The text of a special token stays text. To mean one, a caller puts `special_tokens.mark` around its own part
        of a text before it joins that to a client's.

        Raises:
            BadRequest: a text holds a lone surrogate.
            EngineError: the model's tokenizer is broken in a way that loading did not show.
        """
        for text in texts:
            refuse_surrogates(text)
        return self._encode_marked_batch(texts)

    def _encode_marked(self, text: str) -> list[int]:
        (ids,) = self._encode_marked_batch([text])
        return ids

    def _encode_marked_batch(self, texts: Sequence[str]) -> list[list[int]]:
        # The batch call, unlike the plain one, releases the interpreter lock and keeps no offsets.
        try:
            encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        except BaseException as error:
            if not is_library_failure(error):
                raise
            # Loading cannot find every flaw of a file: a model without the unknown token it needs fails only here.
            raise EngineError("the model's tokenizer failed on this text") from error
        return [encoding.ids for encoding in encodings]

    def check_ids(self, ids: Iterable[int], *, param: str) -> None:
        """Refuses token ids of a client that this vocabulary does not have.

        Raises:
            BadRequest: an id is negative or past the vocabulary; names `param`.
        """
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                message = f"token id {token_id} is out of range: this model has ids 0 to {self.vocab_size - 1}"
                raise BadRequest(message, param=param)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a generated `token_id` adds to the text; empty for special tokens and padding ids."""
        return self.vocabulary.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """`token_id` for display; a special token shows as its name."""
        return self.vocabulary.token_text(token_id)

    def token_id(self, piece: str) -> int | None:
        """The id whose piece in the file is `piece`, special or not; None where the vocabulary has no such piece."""
        special = self.special_tokens.special.get(piece)
        return special if special is not None else self._library.token_to_id(piece)

    def is_special(self, token_id: int) -> bool:
        """Whether `token_id` is never text."""
        return token_id in self.vocabulary.special_ids

    def detokenizer(self, *, skips_special: bool = True) -> Detokenizer:
        """A fresh incremental decoder for one sequence, in which special tokens have no text, or their names."""
        return Detokenizer(self.vocabulary.token_bytes if skips_special else self.vocabulary.shown_bytes)

    def decode(self, ids: Sequence[int]) -> str:
        """The whole text of `ids`: what a detokenizer's pushes and flush join to."""
        return b"".join(map(self.vocabulary.token_bytes, ids)).decode("utf-8", "replace")


def refuse_surrogates(text: str) -> None:
    """Refuses text that is not Unicode.

    Raises:
        BadRequest: the text holds a lone surrogate.
    """
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"the text holds a lone surrogate at character {error.start}") from error
