"""A mapping that remembers which keys were asked for, so that what nobody read can be refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Noted(Mapping[str, Any]):
    """`values_by_key`, noting in `asked` every key that was looked up."""

    def __init__(self, values_by_key: Mapping[str, Any]) -> None:
        self.values_by_key = values_by_key
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return self.values_by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_key)

    def __len__(self) -> int:
        return len(self.values_by_key)
