from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot.engine.kv.allocator import BlockAllocator


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60))
def test_no_block_is_lost_or_owned_twice(operations: list[tuple[bool, int]]) -> None:
    allocator = BlockAllocator(16)
    owners: list[list[int]] = []
    for is_allocation, count in operations:
        if is_allocation and count <= allocator.num_free:
            owners.append(allocator.allocate(count))
        elif owners:
            allocator.release(owners.pop(count % len(owners)))
        held = [block for blocks in owners for block in blocks]
        assert len(held) == len(set(held)) == allocator.num_held
        assert all(0 <= block < 16 for block in held)
        assert allocator.num_free + allocator.num_held == 16


def test_releasing_a_block_nobody_holds_is_our_bug() -> None:
    allocator = BlockAllocator(2)
    blocks = allocator.allocate(1)
    allocator.release(blocks)
    with pytest.raises(KeyError):
        allocator.release(blocks)
