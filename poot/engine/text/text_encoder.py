"""A model's texts as tokens, for embedding and reranking: special tokens, prompts, truncation, pairs.

The text of a special token in what a client wrote stays text, in embeddings as in chats: a document that spells
"[SEP]" cannot end the query it is compared with. (sentence-transformers, a library, reads it as the token; llama.cpp
does so for embeddings and not for reranking.) The model's own prompts may spell special tokens and mean them.

Lengths are counted and cut in tokens, after tokenizing, as transformers does; special tokens are never cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from poot.engine.encoding import EncodeProfile, EncodeText
from poot.engine.text.tokenizer import PairSurroundings, Tokenizer
from poot.errors import BadRequest


class PairWriter(Protocol):
    """How one kind of cross-encoder reads a query and a document. Methods as `TextEncoder.pairs`."""

    def pairs(
        self, query: str, documents: Sequence[str], *, max_tokens_per_document: int | None, max_tokens: int | None
    ) -> list[EncodeText]: ...


class ModelTextEncoder:
    """The `TextEncoder` of one served model.

    Args:
        pair_writer: of a cross-encoder; None for a model that embeds.
        leaves_out_prompt: whether a mean leaves out the tokens of the prompt (Pooling's include_prompt: false).
        cuts_left: whether long texts lose their beginning instead of their end (tokenizer_config.json's
            truncation_side).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        profile: EncodeProfile,
        *,
        pair_writer: PairWriter | None = None,
        leaves_out_prompt: bool = False,
        cuts_left: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._profile = profile
        self._pair_writer = pair_writer
        self._leaves_out_prompt = leaves_out_prompt
        self._cuts_left = cuts_left
        self._prefix = list(tokenizer.prefix_ids)
        self._suffix = list(tokenizer.suffix_ids)

    @property
    def profile(self) -> EncodeProfile:
        return self._profile

    def texts(
        self, texts: Sequence[str], *, prompt: str | None = None, max_tokens: int | None = None
    ) -> list[EncodeText]:
        """Each text with the special tokens the model expects, `prompt` (an instruction, not its name) before it.

        Args:
            max_tokens: cut the content of longer texts to this many tokens, special tokens included.

        Raises:
            BadRequest: a text holds a lone surrogate, or has no token (an empty one, for a model that adds none);
                `max_tokens` leaves no room for special tokens.
        """
        prefix, suffix = self._prefix, self._suffix
        room = None if max_tokens is None else max_tokens - len(prefix) - len(suffix)
        if room is not None and room < 0:
            raise BadRequest(f"this model's special tokens alone are {len(prefix) + len(suffix)}, over {max_tokens}")
        pool_start = 0
        if prompt:
            marked = self._tokenizer.special_tokens.mark(prompt)
            if self._leaves_out_prompt:
                pool_start = len(prefix) + len(self._tokenizer.encode_batch([marked])[0])
            texts = [marked + text for text in texts]
        found = []
        for index, ids in enumerate(self._tokenizer.encode_batch(texts)):
            kept = _cut(ids, room, from_left=self._cuts_left)
            token_ids = np.array([*prefix, *kept, *suffix], np.int64)
            if not len(token_ids):
                raise BadRequest(f"text {index} has no tokens, and this model adds none of its own")
            # A text that is nothing but its prompt, or was cut within it, still needs a token to take the mean of.
            found.append(EncodeText(token_ids, pool_start=min(pool_start, len(token_ids) - 1)))
        return found

    def tokens(self, token_ids: Sequence[int], *, max_tokens: int | None = None) -> EncodeText:
        """A client's own token ids as they are; nothing is added. Cut where `max_tokens` says so.

        Raises:
            BadRequest: an id outside the vocabulary, or none at all.
        """
        self._tokenizer.check_ids(token_ids, param="input")
        if not token_ids:
            raise BadRequest("a list of token ids must not be empty", param="input")
        return EncodeText(np.array(_cut(token_ids, max_tokens, from_left=self._cuts_left), np.int64))

    def pairs(
        self,
        query: str,
        documents: Sequence[str],
        *,
        max_tokens_per_document: int | None = None,
        max_tokens: int | None = None,
    ) -> list[EncodeText]:
        """The query with each document, as a cross-encoder was trained to read them. Only where not `profile.embeds`.

        Args:
            max_tokens_per_document: cut each document to this many tokens before it is joined.
            max_tokens: cut documents (never the query) until a pair fits; None cuts nothing.

        Raises:
            BadRequest: a lone surrogate; a query that alone leaves no room under `max_tokens`.
        """
        assert self._pair_writer is not None, "a model that embeds reads no pairs"
        return self._pair_writer.pairs(
            query, documents, max_tokens_per_document=max_tokens_per_document, max_tokens=max_tokens
        )


@dataclass(frozen=True, kw_only=True)
class JoinedPairs:
    """Pairs as the tokenizer's post-processor joins them: [CLS] query [SEP] document [SEP], with token types.

    Attributes:
        prompt: put before every query (a CrossEncoder's default prompt); may spell special tokens.
    """

    tokenizer: Tokenizer
    surroundings: PairSurroundings
    prompt: str = ""
    cuts_left: bool = False

    def pairs(
        self, query: str, documents: Sequence[str], *, max_tokens_per_document: int | None, max_tokens: int | None
    ) -> list[EncodeText]:
        around = self.surroundings
        marked = self.tokenizer.special_tokens.mark(self.prompt) + query
        query_ids, *documents_ids = self.tokenizer.encode_batch([marked, *documents])
        room = None if max_tokens is None else max_tokens - around.num_tokens - len(query_ids)
        _refuse_query(room, max_tokens, around.num_tokens + len(query_ids), documents_ids)
        limit = _least(room, max_tokens_per_document)
        before = [*around.prefix_ids, *query_ids, *around.middle_ids]
        before_types = [*around.prefix_types, *(around.first_type for _ in query_ids), *around.middle_types]
        has_types = any((*before_types, around.second_type, *around.suffix_types))
        found = []
        for ids in documents_ids:
            kept = _cut(ids, limit, from_left=self.cuts_left)
            types = [*before_types, *(around.second_type for _ in kept), *around.suffix_types]
            found.append(
                EncodeText(
                    np.array([*before, *kept, *around.suffix_ids], np.int64),
                    token_types=np.array(types, np.int64) if has_types else None,
                )
            )
        return found


@dataclass(frozen=True, kw_only=True)
class PromptedPairs:
    """Pairs in a language model's prompt: `before` query `between` document `after`, all but the texts the model's own.

    What stands before `after` is encoded as one text, without a seam, so a document is cut by cutting its tail.
    `after` is encoded on its own; it begins with a special token wherever this is used, which is a seam in any case.
    """

    tokenizer: Tokenizer
    before: str
    between: str
    after: str

    def pairs(
        self, query: str, documents: Sequence[str], *, max_tokens_per_document: int | None, max_tokens: int | None
    ) -> list[EncodeText]:
        mark = self.tokenizer.special_tokens.mark
        head = mark(self.before) + query + mark(self.between)
        # A space before a word is part of the word's token: without it the head is a prefix of every pair's tokens.
        head_ids, suffix, *pairs_ids = self.tokenizer.encode_batch(
            [head.rstrip(" "), mark(self.after), *(head + document for document in documents)]
        )
        prefix = list(self.tokenizer.prefix_ids)
        num_fixed = len(prefix) + len(head_ids) + len(suffix)
        room = None if max_tokens is None else max_tokens - num_fixed
        _refuse_query(room, max_tokens, num_fixed, [ids[len(head_ids) :] for ids in pairs_ids])
        limit = _least(room, max_tokens_per_document)
        return [
            EncodeText(np.array([*prefix, *ids[: None if limit is None else len(head_ids) + limit], *suffix], np.int64))
            for ids in pairs_ids
        ]


def split_template(template: str, query_mark: str, document_mark: str) -> tuple[str, str, str] | None:
    """What stands before, between and after the two marks in `template`; None unless each is there once, in order."""
    if template.count(query_mark) != 1 or template.count(document_mark) != 1:
        return None
    before, _, rest = template.partition(query_mark)
    between, found, after = rest.partition(document_mark)
    return (before, between, after) if found else None


def _cut(ids: Sequence[int], limit: int | None, *, from_left: bool) -> Sequence[int]:
    """The first `limit` of `ids` (or the last, when the beginning is cut off)."""
    if limit is None or len(ids) <= limit:
        return ids
    return ids[len(ids) - limit :] if from_left else ids[:limit]


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _refuse_query(
    room: int | None, max_tokens: int | None, num_tokens: int, documents: Sequence[Sequence[int]]
) -> None:
    """Refuses a query that leaves a document no room."""
    if room is not None and (room < 0 or (room == 0 and any(documents))):
        raise BadRequest(
            f"the query takes {num_tokens} tokens with what surrounds it, which leaves no room for a document in "
            f"{max_tokens}",
            param="query",
        )
