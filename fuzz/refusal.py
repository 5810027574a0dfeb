"""What every refusal of a model file is like."""

from __future__ import annotations

from poot.errors import CheckpointError

_MAX_CHARACTERS = 1000


def check_refusal(error: CheckpointError, num_bytes: int) -> None:
    """Raises AssertionError unless the message is one short line that begins with the file's name, `model`."""
    message = str(error)
    assert message.startswith("model: ")
    assert "\n" not in message
    assert len(message) < _MAX_CHARACTERS
    assert error.offset is None or 0 <= error.offset <= num_bytes
