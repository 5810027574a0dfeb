"""Who holds which KV block. Pure bookkeeping over block numbers: no tensors, no waiting."""

from __future__ import annotations

from collections import deque


class BlockAllocator:
    """Hands out the blocks of a pool, each to one owner at a time.

    Blocks are given back in any order; the one free for longest is handed out next.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 1
        self.num_blocks = num_blocks
        self._free: deque[int] = deque(range(num_blocks))
        self._held: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        return len(self._held)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks that nobody else holds. The plan sized the pool so that rows can never run out."""
        assert count <= len(self._free), "the plan provides max_seq positions for every row"
        blocks = [self._free.popleft() for _ in range(count)]
        self._held.update(blocks)
        return blocks

    def release(self, blocks: list[int]) -> None:
        """Takes blocks back."""
        for block in blocks:
            self._held.remove(block)
            self._free.append(block)
