from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot.engine.kv.allocator import BlockAllocator


@settings(max_examples=200)
@given(st.data())
def test_no_block_is_lost_or_held_by_fewer_or_more_than_its_holders(data: st.DataObject) -> None:
    """Against a model that writes down every holder: opens, forks, publications, releases in any order."""
    allocator = BlockAllocator(16)
    evicted: list[int] = []
    allocator.on_evict = evicted.append
    owners: list[list[int]] = []
    known: set[int] = set()
    for _ in range(data.draw(st.integers(0, 60))):
        action = data.draw(st.sampled_from(["open", "fork", "publish", "release", "reuse"]))
        held = Counter(block for blocks in owners for block in blocks)
        if action == "open":
            count = data.draw(st.integers(0, 5))
            if count <= allocator.num_free:
                evicted.clear()
                blocks = allocator.allocate(count)
                assert not set(blocks) & set(held)
                assert set(evicted) <= set(blocks) & known
                known -= set(blocks)
                owners.append(blocks)
        elif action == "fork" and owners:
            blocks = owners[data.draw(st.integers(0, len(owners) - 1))]
            shared = blocks[: data.draw(st.integers(0, len(blocks)))]
            for block in shared:
                allocator.share(block)
            owners.append(list(shared))
        elif action == "publish" and held:
            block = data.draw(st.sampled_from(sorted(held)))
            allocator.mark_known(block)
            known.add(block)
        elif action == "reuse" and (kept := known - set(held)):
            block = data.draw(st.sampled_from(sorted(kept)))
            allocator.share(block)
            owners.append([block])
        elif action == "release" and owners:
            allocator.release(owners.pop(data.draw(st.integers(0, len(owners) - 1))))
        held = Counter(block for blocks in owners for block in blocks)
        assert allocator.holders(range(16)) == [held[block] for block in range(16)]
        assert allocator.num_held == len(held)
        assert allocator.num_kept == len(known - set(held))
        assert allocator.num_free + allocator.num_held == 16


def test_releasing_a_block_nobody_holds_is_our_bug() -> None:
    allocator = BlockAllocator(2)
    blocks = allocator.allocate(1)
    allocator.release(blocks)
    with pytest.raises(KeyError):
        allocator.release(blocks)


def test_free_blocks_are_handed_out_before_kept_ones() -> None:
    allocator = BlockAllocator(4)
    kept = allocator.allocate(2)
    for block in kept:
        allocator.mark_known(block)
    allocator.release(kept)
    assert allocator.allocate(3) == [2, 3, 1]
    assert allocator.num_kept == 1
