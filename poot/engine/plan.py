"""The memory plan: how many rows and positions fit the device, settled before anything is allocated.

Arithmetic over byte counts alone. The plan tries the workload as asked; while it does not fit it halves rows down to 1,
then max_seq down to 128, then refuses with every term. The log says each workload that was tried and did not fit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from poot.devices.base import MemoryBudget
from poot.errors import CapacityError

logger = logging.getLogger("poot.plan")

# The reference's floor: below this many positions a chat hardly holds its template, so a smaller fit is of no use.
MIN_FITTED_SEQ = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What was settled on.

    Attributes:
        asked_rows, asked_max_seq: what was tried first; max_seq before the model's own limit.
        terms: every part of the sum in bytes, by name.
        available_bytes: what the device offered; at least `total_bytes`.
    """

    num_rows: int
    max_seq: int
    asked_rows: int
    asked_max_seq: int
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
    asked_rows, asked_max_seq = num_rows, max_seq
    max_seq = min(max_seq, model_limit)
    while True:
        needed = terms(num_rows, max_seq)
        total_bytes = sum(needed.values())
        if total_bytes <= budget.available_bytes:
            return Plan(
                num_rows=num_rows,
                max_seq=max_seq,
                asked_rows=asked_rows,
                asked_max_seq=asked_max_seq,
                terms=needed,
                available_bytes=budget.available_bytes,
            )
        if num_rows > 1:
            smaller_rows, smaller_max_seq = num_rows // 2, max_seq
        elif max_seq > MIN_FITTED_SEQ:
            smaller_rows, smaller_max_seq = 1, max(MIN_FITTED_SEQ, max_seq // 2)
        else:
            listed = ", ".join(f"{name} {size}" for name, size in needed.items())
            raise CapacityError(
                f"the model does not fit: {total_bytes} bytes needed at rows 1 and max_seq {max_seq} "
                f"({listed}), {budget.available_bytes} bytes available",
                terms=needed,
                available_bytes=budget.available_bytes,
            )
        logger.info(
            "plan: rows %d, max_seq %d does not fit (%d bytes needed, %d available), trying rows %d, max_seq %d",
            num_rows,
            max_seq,
            total_bytes,
            budget.available_bytes,
            smaller_rows,
            smaller_max_seq,
        )
        num_rows, max_seq = smaller_rows, smaller_max_seq
