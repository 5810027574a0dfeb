"""Server-sent events of one answer, put together from bytes that are encoded once.

Only the text of a delta is encoded for each token; what stands around it is a template of the stream.
"""

from __future__ import annotations

from typing import Any

import msgspec

encode = msgspec.json.encode


class Chunks:
    """The frames of one stream: `data: {id, object, created, model, system_fingerprint, choices: [...]}`.

    Args:
        envelope: the fields before `choices`, in order.
        includes_usage: every chunk then says `usage: null`, and a last one has the counts, as OpenAI sends them.
    """

    def __init__(self, envelope: dict[str, Any], *, includes_usage: bool) -> None:
        self._head = b"data: " + encode(envelope)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if includes_usage else b"]}\n\n"

    def choice(self, inner: bytes) -> bytes:
        """A chunk with one choice, whose JSON object is `inner`."""
        return self._head + inner + self._tail

    def around(self, before: bytes, after: bytes) -> tuple[bytes, bytes]:
        """What stands before and after a text in a chunk whose choice is `before` text `after`."""
        return self._head + before, after + self._tail

    def usage(self, usage: dict[str, int]) -> bytes:
        """The chunk with the counts and no choice."""
        return self._head + b'],"usage":' + encode(usage) + b"}\n\n"
