"""Frames, read back by a parser written from the WHATWG description of event streams."""

from __future__ import annotations

import json

from poot.net.sse import COMMENT, CONTENT_TYPE, DONE, FrameTemplate, data_frame


def events(stream: bytes) -> list[str]:
    """The data of each event (WHATWG HTML section 9.2.6, for the fields that frames use)."""
    found: list[str] = []
    data: list[str] = []
    for line in stream.decode("utf-8").split("\n"):
        if not line:
            if data:
                found.append("\n".join(data))
            data = []
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            assert name == "data"
            data.append(value.removeprefix(" "))
    assert data == [], "the stream ends in the middle of an event"
    return found


def test_frames_are_events() -> None:
    text = json.dumps({"a": "two\nlines"}).encode()
    assert events(data_frame(text) + COMMENT + data_frame("é".encode()) + DONE) == [text.decode(), "é", "[DONE]"]


def test_a_template_gives_the_frame_that_encoding_would() -> None:
    template = FrameTemplate(b'{"id":"x","delta":', b',"n":1}')
    frame = template.frame(json.dumps('a"b').encode())
    assert frame == data_frame(b'{"id":"x","delta":"a\\"b","n":1}')
    assert [json.loads(event) for event in events(frame)] == [{"id": "x", "delta": 'a"b', "n": 1}]


def test_the_content_type_is_that_of_event_streams() -> None:
    assert CONTENT_TYPE.split(b";")[0] == b"text/event-stream"
