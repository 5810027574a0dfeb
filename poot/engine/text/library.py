"""Building an object of the `tokenizers` library: the steps every GGUF source shares.

The library reports whatever it dislikes as a plain `Exception` (or a panic) with a message; here it becomes the one
error of a broken model file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import tokenizers

from poot.engine.text.special import SpecialTokens
from poot.errors import CheckpointError, PootError

Built = TypeVar("Built")


def build(make: Callable[[], Built], *, where: str) -> Built:
    """What `make` builds with the library.

    Raises:
        CheckpointError: the library refused; its message is in the error.
    """
    try:
        return make()
    except PootError:
        raise
    except RecursionError as error:
        raise CheckpointError("the tokenizer is nested too deeply", path=where) from error
    except BaseException as error:
        if not is_library_failure(error):
            raise
        raise CheckpointError(f"the tokenizer does not load: {_one_line(error)}", path=where) from error


def is_library_failure(error: BaseException) -> bool:
    """Whether `error` may be the library's: it raises bare Exception, and a panic of its Rust code is not even that."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def add_tokens(
    library: tokenizers.Tokenizer,
    special_tokens: SpecialTokens,
    user_defined: Mapping[str, int],
    *,
    stripping: frozenset[str] = frozenset(),
) -> None:
    """Tells `library`, whose model already has them in its vocabulary, to match added tokens before all else.

    Args:
        stripping: special tokens that swallow white space after them.
    """
    library.add_special_tokens(
        [
            tokenizers.AddedToken(name, normalized=False, special=True, rstrip=text in stripping)
            for text, name in special_tokens.names.items()
        ]
    )
    library.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in user_defined])


def library_vocabulary(tokens: Mapping[str, int], special_tokens: SpecialTokens) -> dict[str, int]:
    """`tokens` with special ones under their internal names, so that no text can merge into one."""
    names = special_tokens.names
    return {names.get(text, text): token_id for text, token_id in tokens.items()}
