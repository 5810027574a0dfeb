"""Words that are one token each, to make texts of an exact length from."""

from __future__ import annotations

import json
from pathlib import Path


def single_token_words(model: Path) -> list[str]:
    """Whole lower-case ASCII words of a WordPiece vocabulary, of four letters and more.

    Raises:
        ValueError: the directory's tokenizer.json is not WordPiece's.
    """
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    if tokenizer["model"].get("type", "WordPiece") != "WordPiece":
        raise ValueError("texts of an exact length are made for WordPiece vocabularies only")
    return sorted(word for word in tokenizer["model"]["vocab"] if word.isascii() and word.isalpha() and len(word) >= 4)
