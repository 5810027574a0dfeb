"""Invariant: however a text is cut into pieces, it ends before the stop string that begins first, and what is sent
early is a beginning of that.

The bytes are UTF-8: the first line holds stop strings divided by tabs, at most 16; of the rest, a NUL ends a piece.
"""

from __future__ import annotations

from poot.engine.text.stop import StopMatcher

_MAX_STOPS = 16


def check(data: bytes) -> None:
    """Raises AssertionError when the invariant is broken; anything else that is raised breaks it too."""
    line, _, rest = data.decode("utf-8", "replace").partition("\n")
    stops = [stop for stop in line.split("\t") if stop][:_MAX_STOPS]
    if not stops:
        return
    pieces = rest.split("\0")
    text = "".join(pieces)
    starts = [start for stop in stops if (start := text.find(stop)) >= 0]
    expected = text[: min(starts)] if starts else text

    matcher = StopMatcher(stops)
    sent = ""
    has_stopped = False
    for piece in pieces:
        more, has_stopped = matcher.push(piece)
        sent += more
        assert expected.startswith(sent)
        if has_stopped:
            break
    if not has_stopped:
        more, has_stopped = matcher.flush()
        sent += more
    assert sent == expected
    assert has_stopped == bool(starts)
