"""Harnesses for every parser that meets bytes from outside: `python -m fuzz NAME` runs one of `HARNESSES`.

Each module opens with its invariant and has one pure entry point, `check(data)`, which raises only when that is broken.
It knows nothing of the fuzzer, so that the tests run the same entry point over the seeds and over Hypothesis's inputs.
"""

from __future__ import annotations

HARNESSES = (
    "http1_head",
    "http2_connection",
    "request_head",
    "request_bodies",
    "chat_template",
    "gguf",
    "safetensors_header",
    "stop_strings",
    "command_line",
)
