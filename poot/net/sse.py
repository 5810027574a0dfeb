"""Server-sent events: the bytes of one event, put together from what is already JSON.

The format is the WHATWG HTML standard's "Server-sent events", section 9.2.6. Frames hold one `data` line each, so the
data must be free of line ends, as JSON without indentation is.
"""

from __future__ import annotations

CONTENT_TYPE = b"text/event-stream; charset=utf-8"

HEADERS = ((b"content-type", CONTENT_TYPE), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
"""The answer's fields. The last one keeps nginx in front of us from collecting the frames."""

DONE = b"data: [DONE]\n\n"
"""The frame that ends a stream of the OpenAI API."""

COMMENT = b":\n\n"
"""A frame that clients skip; keeps an idle connection alive through proxies."""


def data_frame(json_text: bytes) -> bytes:
    """The frame of one event; `json_text` is one line."""
    return b"data: %b\n\n" % json_text


class FrameTemplate:
    """Frames that differ in one place: the rest is encoded once a stream, not once a token.

    Args:
        before: JSON text up to the place that changes.
        after: JSON text from there on.
    """

    __slots__ = ("_after", "_before")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = b"data: " + before
        self._after = after + b"\n\n"

    def frame(self, json_text: bytes) -> bytes:
        """The frame with `json_text` (one line) in its place."""
        return b"%b%b%b" % (self._before, json_text, self._after)
