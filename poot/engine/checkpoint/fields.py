"""Typed reading of a model's configuration: GGUF metadata or a JSON file of a safetensors directory.

A configuration comes from outside, so nothing in it has a type until it was asked for here. Every refusal is a
`CheckpointError` that names the key, the value found and what is allowed. Knows no key by name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, overload

from poot.errors import CheckpointError

# Integers of both formats fit in 64 bits; a larger one is a mistake, and would overflow in torch later.
LARGEST_INTEGER = 2**63 - 1

# Characters of a value quoted in an error message: enough to recognise it, short enough for one line.
MAX_QUOTED_CHARACTERS = 60


def quote(value: object) -> str:
    """`value` as it is shown in an error message: one printable line, shortened where it is long."""
    if isinstance(value, str):
        text = repr(value[: MAX_QUOTED_CHARACTERS + 1])
    elif isinstance(value, (list, tuple)):
        text = f"a list of {len(value)}"
    elif isinstance(value, Mapping):
        text = f"an object of {len(value)}"
    elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        return "an integer beyond 64 bits"  # Python refuses to print the largest ones
    else:
        text = repr(value)
    return text if len(text) <= MAX_QUOTED_CHARACTERS else f"{text[:MAX_QUOTED_CHARACTERS]}..."


class ConfigReader:
    """Typed access to `mapping`.

    A key whose value is null counts as absent, as it does in Hugging Face configurations. A bool is never taken for an
    integer, an integer is taken where a float is asked for, and NaN and infinities are refused.

    Args:
        mapping: the keys and values.
        where: the file, or file and object within it, that error messages name.

    Every method raises CheckpointError: `require_*` and the lists when the key is absent, all when a value that is
    there has the wrong type or is out of range.
    """

    def __init__(self, mapping: Mapping[str, Any], *, where: str) -> None:
        self.mapping = mapping
        self.where = where

    def has(self, key: str) -> bool:
        """Whether `key` is there with a value other than null."""
        return self.mapping.get(key) is not None

    def refuse(self, key: str, allowed: str) -> CheckpointError:
        """The error for the value of `key`, to be raised by a caller with a rule of its own."""
        return CheckpointError(f"{key} is {quote(self.mapping.get(key))}; it must be {allowed}", path=self.where)

    def require_int(self, key: str, *, minimum: int = 0, maximum: int = LARGEST_INTEGER) -> int:
        """The integer at `key`, within `minimum` and `maximum`, both included."""
        return self._integer(key, self._require(key), minimum, maximum)

    @overload
    def optional_int(self, key: str, default: int, *, minimum: int = ..., maximum: int = ...) -> int: ...
    @overload
    def optional_int(self, key: str, default: None, *, minimum: int = ..., maximum: int = ...) -> int | None: ...
    def optional_int(
        self, key: str, default: int | None, *, minimum: int = 0, maximum: int = LARGEST_INTEGER
    ) -> int | None:
        """Like `require_int`; `default`, unchecked, where the key is absent."""
        return self._integer(key, self.mapping[key], minimum, maximum) if self.has(key) else default

    def require_float(self, key: str, *, minimum: float = -math.inf, maximum: float = math.inf) -> float:
        """The finite number at `key`, within `minimum` and `maximum`, both included."""
        return self._number(key, self._require(key), minimum, maximum)

    @overload
    def optional_float(self, key: str, default: float, *, minimum: float = ..., maximum: float = ...) -> float: ...
    @overload
    def optional_float(
        self, key: str, default: None, *, minimum: float = ..., maximum: float = ...
    ) -> float | None: ...
    def optional_float(
        self, key: str, default: float | None, *, minimum: float = -math.inf, maximum: float = math.inf
    ) -> float | None:
        """Like `require_float`; `default`, unchecked, where the key is absent."""
        return self._number(key, self.mapping[key], minimum, maximum) if self.has(key) else default

    def require_str(self, key: str, *, choices: Collection[str] | None = None) -> str:
        """The string at `key`, one of `choices` where they are given."""
        return self._string(key, self._require(key), choices)

    @overload
    def optional_str(self, key: str, default: str, *, choices: Collection[str] | None = ...) -> str: ...
    @overload
    def optional_str(self, key: str, default: None, *, choices: Collection[str] | None = ...) -> str | None: ...
    def optional_str(self, key: str, default: str | None, *, choices: Collection[str] | None = None) -> str | None:
        """Like `require_str`; `default`, unchecked, where the key is absent."""
        return self._string(key, self.mapping[key], choices) if self.has(key) else default

    def require_bool(self, key: str) -> bool:
        """The boolean at `key`."""
        return self._boolean(key, self._require(key))

    @overload
    def optional_bool(self, key: str, default: bool) -> bool: ...
    @overload
    def optional_bool(self, key: str, default: None) -> bool | None: ...
    def optional_bool(self, key: str, default: bool | None) -> bool | None:
        """Like `require_bool`; `default` where the key is absent."""
        return self._boolean(key, self.mapping[key]) if self.has(key) else default

    def int_list(
        self, key: str, *, length: int | None = None, minimum: int = 0, maximum: int = LARGEST_INTEGER
    ) -> tuple[int, ...]:
        """The list of integers at `key`, each within the bounds, of exactly `length` entries where that is given."""
        values = self._list(key, length)
        for index, value in enumerate(values):
            if type(value) is not int or not minimum <= value <= maximum:
                self._integer(f"{key}[{index}]", value, minimum, maximum)
        return values

    def float_list(
        self, key: str, *, length: int | None = None, minimum: float = -math.inf, maximum: float = math.inf
    ) -> tuple[float, ...]:
        """The list of finite numbers at `key`, each within the bounds, of exactly `length` entries where given."""
        values = self._list(key, length)
        return tuple(self._number(f"{key}[{index}]", value, minimum, maximum) for index, value in enumerate(values))

    def string_list(self, key: str, *, length: int | None = None) -> tuple[str, ...]:
        """The list of strings at `key`, of exactly `length` entries where that is given."""
        values = self._list(key, length)
        for index, value in enumerate(values):
            if type(value) is not str:  # a vocabulary has 262,144 of them: name the place only when it is wrong
                self._string(f"{key}[{index}]", value, None)
        return values

    def require_section(self, key: str) -> ConfigReader:
        """A reader of the object at `key`."""
        value = self._require(key)
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "an object")
        return ConfigReader(value, where=f"{self.where}: {key}")

    def optional_section(self, key: str) -> ConfigReader | None:
        """A reader of the object at `key`, or None where the key is absent."""
        return self.require_section(key) if self.has(key) else None

    def _require(self, key: str) -> Any:
        if key not in self.mapping:
            raise CheckpointError(f"{key} is missing", path=self.where)
        value = self.mapping[key]
        if value is None:
            raise CheckpointError(f"{key} is null, but it is needed", path=self.where)
        return value

    def _wrong(self, key: str, value: object, allowed: str) -> CheckpointError:
        return CheckpointError(f"{key} is {quote(value)}; it must be {allowed}", path=self.where)

    def _integer(self, key: str, value: object, minimum: int, maximum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            if maximum == LARGEST_INTEGER:
                raise self._wrong(key, value, f"an integer of at least {minimum}")
            raise self._wrong(key, value, f"an integer from {minimum} to {maximum}")
        return value

    def _number(self, key: str, value: object, minimum: float, maximum: float) -> float:
        if not isinstance(value, bool) and isinstance(value, (int, float)):
            try:
                number = float(value)
            except OverflowError:  # an integer beyond 1.8e308
                number = math.inf
            if math.isfinite(number) and minimum <= number <= maximum:
                return number
        bounds = ""
        if minimum != -math.inf or maximum != math.inf:
            bounds = f" from {minimum:g} to {maximum:g}" if maximum != math.inf else f" of at least {minimum:g}"
        raise self._wrong(key, value, f"a finite number{bounds}")

    def _string(self, key: str, value: object, choices: Collection[str] | None) -> str:
        if not isinstance(value, str) or (choices is not None and value not in choices):
            allowed = "a string" if choices is None else f"one of {', '.join(sorted(choices))}"
            raise self._wrong(key, value, allowed)
        return value

    def _boolean(self, key: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def _list(self, key: str, length: int | None) -> tuple[Any, ...]:
        value = self._require(key)
        if not isinstance(value, (list, tuple)) or (length is not None and len(value) != length):
            raise self._wrong(key, value, "a list" if length is None else f"a list of {length}")
        return tuple(value)
