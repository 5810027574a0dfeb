from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poot.engine.kv.allocator import BlockAllocator
from poot.engine.kv.prefix_index import ROOT, PrefixIndex

BLOCK_SIZE = 2


def enter(index: PrefixIndex, allocator: BlockAllocator, text: list[int]) -> list[int]:
    """Computes a text in blocks of its own, lets them be shared and releases them."""
    blocks = allocator.allocate(len(text) // BLOCK_SIZE)
    node = ROOT
    for number, block in enumerate(blocks):
        node = index.enter(index.key(node, text, number * BLOCK_SIZE), block)
    allocator.release(blocks)
    return blocks


def find(index: PrefixIndex, text: list[int]) -> list[int]:
    """The blocks of the longest known beginning of `text`; each has a holder more afterwards."""
    blocks = []
    node = ROOT
    for start in range(0, len(text) - BLOCK_SIZE + 1, BLOCK_SIZE):
        if (found := index.take(index.key(node, text, start))) is None:
            break
        node, block = found
        blocks.append(block)
    return blocks


@given(st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=8), min_size=1, max_size=12))
def test_a_block_is_found_for_its_own_text_and_no_other(texts: list[list[int]]) -> None:
    """The content of each block is written down; a block that is found must hold the text it is found for."""
    allocator = BlockAllocator(6)
    index = PrefixIndex(allocator, BLOCK_SIZE)
    content: dict[int, list[int]] = {}
    for text in texts:
        shared = find(index, text)
        for number, block in enumerate(shared):
            assert content[block] == text[: (number + 1) * BLOCK_SIZE]
        allocator.release(shared)
        for number, block in enumerate(enter(index, allocator, text)):
            content[block] = text[: (number + 1) * BLOCK_SIZE]
        assert len(index) == allocator.num_kept <= 6


def test_where_two_compute_the_same_block_the_first_stays_and_the_second_is_freed() -> None:
    allocator = BlockAllocator(4)
    index = PrefixIndex(allocator, BLOCK_SIZE)
    first = enter(index, allocator, [1, 2])
    enter(index, allocator, [1, 2])
    assert (allocator.num_kept, len(index)) == (1, 1)
    assert find(index, [1, 2]) == first


def test_a_chain_breaks_where_a_block_was_evicted() -> None:
    allocator = BlockAllocator(3)
    index = PrefixIndex(allocator, BLOCK_SIZE)
    blocks = enter(index, allocator, [1, 2, 3, 4, 5, 6])
    allocator.allocate(1)  # nothing is free: the last block makes room
    assert find(index, [1, 2, 3, 4, 5, 6]) == blocks[:2]
