"""The memory plan: how many rows and positions fit the device, settled before anything is allocated.

Pure arithmetic over byte counts. The plan tries the workload as asked; while it does not fit it halves rows down to 1,
then max_seq down to 128, then refuses with every term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poot.devices.base import MemoryBudget
from poot.errors import CapacityError

# The reference's floor: below this many positions a chat hardly holds its template, so a smaller fit is of no use.
MIN_FITTED_SEQ = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What was settled on.

    Attributes:
        terms: every part of the sum in bytes, by name.
    """

    num_rows: int
    max_seq: int
    terms: dict[str, int]
    available_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(self.terms.values())


def fit(
    *,
    num_rows: int,
    max_seq: int,
    model_limit: int,
    budget: MemoryBudget,
    terms: Callable[[int, int], dict[str, int]],
) -> Plan:
    """The largest workload that fits, by the design's halvings.

    Args:
        num_rows, max_seq: as asked for; max_seq is capped at `model_limit` first.
        budget: what the device offers.
        terms: bytes of every part for (num_rows, max_seq).

    Raises:
        CapacityError: not even one row of the smallest max_seq fits.
    """
    max_seq = min(max_seq, model_limit)
    while True:
        needed = terms(num_rows, max_seq)
        if sum(needed.values()) <= budget.available_bytes:
            return Plan(num_rows=num_rows, max_seq=max_seq, terms=needed, available_bytes=budget.available_bytes)
        if num_rows > 1:
            num_rows //= 2
        elif max_seq > MIN_FITTED_SEQ:
            max_seq = max(MIN_FITTED_SEQ, max_seq // 2)
        else:
            listed = ", ".join(f"{name} {size}" for name, size in needed.items())
            raise CapacityError(
                f"the model does not fit: {sum(needed.values())} bytes needed at rows 1 and max_seq {max_seq} "
                f"({listed}), {budget.available_bytes} bytes available",
                terms=needed,
                available_bytes=budget.available_bytes,
            )
