"""What tests read out of a sequence's events."""

from __future__ import annotations

from collections.abc import Sequence

from poot.engine.sequence import Delta, Event


def ids_of(events: Sequence[Event]) -> list[int]:
    """All generated token ids, in order."""
    return [token_id for event in events if isinstance(event, Delta) for token_id in event.token_ids]
