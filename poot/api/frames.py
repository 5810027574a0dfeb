"""The chunks of one streamed answer as frames: all but a delta's text is encoded once a stream, not once a token."""

from __future__ import annotations

from typing import Any

import msgspec

from poot.net.sse import FrameTemplate, data_frame

encode = msgspec.json.encode


class Chunks:
    """The frames of one stream: `{id, object, created, model, system_fingerprint, choices: [...]}` each.

    Args:
        envelope: the fields before `choices`, in order.
        includes_usage: every chunk then says `usage: null`, and a last one has the counts, as OpenAI sends them.
    """

    def __init__(self, envelope: dict[str, Any], *, includes_usage: bool) -> None:
        self._head = encode(envelope)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}' if includes_usage else b"]}"

    def choice(self, choice: dict[str, Any], **fields: Any) -> bytes:
        """A chunk with one choice, and `fields` beside `choices`."""
        if fields:
            return data_frame(self._head + encode(choice) + b"]," + encode(fields)[1:-1] + self._tail[1:])
        return data_frame(self._head + encode(choice) + self._tail)

    def around(self, before: bytes, after: bytes) -> FrameTemplate:
        """Chunks whose one choice is the JSON text `before`, a text, `after`."""
        return FrameTemplate(self._head + before, after + self._tail)

    def timings(self, timings: dict[str, Any]) -> bytes:
        """The chunk with the times and no choice."""
        return data_frame(self._head + b'],"timings":' + encode(timings) + self._tail[1:])

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The chunk with the counts and no choice."""
        return data_frame(self._head + b'],"usage":' + encode(usage) + b"}")
