"""The embedding benchmark's own arithmetic, its client's reading of answers, and its texts' lengths."""

from __future__ import annotations

import json
import random
import socket
import threading
from pathlib import Path

import pytest

from benchmarks.embed import MIXED, SETS, Line, TextSet, format_table
from benchmarks.embed_client import EmbeddingClient
from benchmarks.words import single_token_words


def answer(listener: socket.socket, answers: list[bytes], bodies: list[dict[str, object]]) -> None:
    """Serves one connection: an answer a request, a byte at a time."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as reader:
        for text in answers:
            length = 0
            while (line := reader.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line[15:])
            bodies.append(json.loads(reader.read(length)))
            for byte in text:
                connection.send(bytes([byte]))


def exchange(answers: list[bytes], texts: list[str], texts_per_request: int) -> list[dict[str, object]]:
    """The bodies of the requests that one client sends for `texts`."""
    bodies: list[dict[str, object]] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener, answers, bodies))
        thread.start()
        try:
            client = EmbeddingClient(listener.getsockname()[1], "/v1/embeddings", "m")
            assert client.seconds(texts, 1, texts_per_request) > 0
        finally:
            thread.join()
    return bodies


def test_the_client_sends_every_text_once_and_waits_for_whole_answers() -> None:
    good = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde"
    bodies = exchange([good, good], ["a", "b", "c"], 2)
    assert [body["input"] for body in bodies] == [["a", "b"], ["c"]]
    assert {body["encoding_format"] for body in bodies} == {"base64"}


def test_an_answer_that_is_not_200_stops_the_client() -> None:
    refused = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}"
    with pytest.raises(ConnectionError, match="429"):
        exchange([refused], ["a"], 1)


def test_texts_have_the_lengths_of_their_set(tmp_path: Path) -> None:
    vocabulary = {"[CLS]": 0, "word": 1, "##word": 2, "käse": 3, "longer": 4, "abc": 5}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece", "vocab": vocabulary}}))
    words = single_token_words(tmp_path)
    assert words == ["longer", "word"]
    texts = TextSet("mixed", *MIXED, 200).draw(words, random.Random(0))
    # Two special tokens stand around every text.
    assert all(MIXED[0] <= len(text.split()) + 2 <= MIXED[1] for text in texts)
    assert len({len(text) for text in texts}) > 50


def test_the_table_shows_medians_tokens_and_ratios_to_the_baseline() -> None:
    def line(name: str, *rates: float) -> Line:
        made = Line(name=name, seconds=lambda texts: 0.0)
        made.rates = {text_set.name: list(rates) for text_set in SETS}
        return made

    baseline = line("peer", 10, 1, 20)
    rows = format_table([line("ours", 30, 15, 1), baseline], baseline)
    assert rows[2].startswith("| ours | 15.0 (120, 1.50x) | 15.0 (960, 1.50x) |")
    assert rows[3].startswith("| peer | 10.0 (80) |")


def test_a_line_that_died_says_how() -> None:
    def refuse(texts: list[str]) -> float:
        raise ConnectionError("the server closed the connection")

    line = Line(name="peer", seconds=refuse)
    line.measure(SETS[0], ["a"])
    line.measure(SETS[1], ["a"])
    assert "the server closed the connection" in format_table([line], line)[2]
