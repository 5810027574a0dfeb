"""Finding added tokens in a text, and telling the tokenizer library which of the matches are meant.

Theory of operation. The `tokenizers` library matches added tokens in whatever text it is given; its one switch for
special tokens is a property of the shared object, so it can neither be set for one call nor for a part of a text.
poot needs both: in a chat, the template's "<|im_end|>" is a token and the user's is text. So inside the library every
special token goes by an internal name that no client can write (128 random bits between two noncharacters), and the
text of a special token means nothing to it. `SpecialTokens.mark` puts the internal names where special tokens are
meant; all else stays ordinary text that is encoded without a seam.

Matches are found leftmost first, the longest of those that begin together, as the library does.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from collections.abc import Mapping

# Noncharacters (Unicode 23.7) that the guards of `guard` leave alone.
NAME_START = "\ufdee"
NAME_END = "\ufdef"


def literal_pattern(texts: Mapping[str, int]) -> str:
    """A regular expression that matches the longest of `texts` at a position, as nested groups over a prefix tree.

    A plain alternation tries every text at each position, and some vocabularies have thousands of them; the tree
    costs at most the length of the longest.
    """
    root: dict[str, object] = {}
    for text in texts:
        node = root
        for character in text:
            child = node.setdefault(character, {})
            assert isinstance(child, dict)
            node = child
        node[""] = True
    return _tree_pattern(root)


def _tree_pattern(node: dict[str, object]) -> str:
    """The pattern below one node of the prefix tree; chains without a branch stay one literal.

    Goes down an explicit stack: a hostile file may hold a text of any length.
    """
    # Each frame: the node, the branches already written, and the children still to write.
    finished: list[str] = []
    stack: list[tuple[dict[str, object], list[str], list[tuple[str, dict[str, object]]], str]] = []

    def open_frame(frame_node: dict[str, object], prefix: str) -> None:
        children = [(key, child) for key, child in sorted(frame_node.items()) if isinstance(child, dict)]
        stack.append((frame_node, [], children, prefix))

    open_frame(node, "")
    while stack:
        frame_node, branches, children, prefix = stack[-1]
        if children:
            literal, child = children.pop()
            while len(child) == 1 and "" not in child:
                (key, only), *_ = child.items()
                assert isinstance(only, dict)
                literal += key
                child = only
            open_frame(child, re.escape(literal))
            continue
        stack.pop()
        if not branches:
            pattern = ""
        else:
            pattern = branches[0] if len(branches) == 1 and "" not in frame_node else f"(?:{'|'.join(branches)})"
            if "" in frame_node:
                pattern = f"(?:{pattern})?"
        (stack[-1][1] if stack else finished).append(prefix + pattern)
    return finished[0]


class SpecialTokens:
    """The added tokens of one tokenizer, and the internal names of its special ones.

    Args:
        special: text and id of every special token.
        ordinary: text and id of added tokens that are not special; they take part in matching, since a longer one
            hides a special token inside it, and are left for the library to find.
    """

    def __init__(self, special: Mapping[str, int], ordinary: Mapping[str, int]) -> None:
        self.special = dict(special)
        self._names = internal_names(special)
        every = {**ordinary, **special}
        self._pattern = re.compile(literal_pattern(every)) if special else None
        self._sorted = sorted(special)
        self._longest = max(map(len, special), default=0)

    @property
    def names(self) -> Mapping[str, str]:
        """The library's name for the text of each special token."""
        return self._names

    def mark(self, text: str) -> str:
        """`text` with every special token in it replaced by its internal name."""
        if self._pattern is None or self._pattern.search(text) is None:
            return text
        return self._pattern.sub(lambda match: self._names.get(match[0], match[0]), text)

    def find(self, text: str) -> list[tuple[int, int]]:
        """Where special tokens stand in `text`, as (start, end) in characters, in order and without overlap."""
        if self._pattern is None:
            return []
        return [match.span() for match in self._pattern.finditer(text) if match[0] in self.special]

    def find_begun(self, text: str) -> list[int]:
        """Where a special token begins in `text` and its end breaks off, each as the start in characters.

        White space at the end counts as none, since chat templates often strip it.
        """
        return [
            start
            for stripped in {text, text.rstrip()}
            for start in range(max(0, len(stripped) - self._longest + 1), len(stripped))
            if self._is_begun(stripped[start:])
        ]

    def _is_begun(self, text: str) -> bool:
        """Whether `text` is the beginning, and not the whole, of a special token."""
        after = bisect_right(self._sorted, text)
        return after < len(self._sorted) and self._sorted[after].startswith(text)


def internal_names(special: Mapping[str, int]) -> dict[str, str]:
    """A name for each special token that cannot be guessed and hence not be sent by a client."""
    nonce = secrets.token_hex(16)
    return {text: f"{NAME_START}{nonce}:{token_id}{NAME_END}" for text, token_id in special.items()}
