"""Who holds which KV block. Pure bookkeeping over block numbers: no tensors, no waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence


class BlockAllocator:
    """Hands out the blocks of a pool, and counts the holders of each.

    A block is in one of three states: held by one sequence or more, kept (held by nobody, but its content is known and
    may be shared again), or free. Free blocks are handed out first, the one free for longest before the others; then
    kept ones, the one released first before the others.

    Attributes:
        num_allocations: how often each block was handed out; its content lasts while the number stays.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 1
        self.num_blocks = num_blocks
        # Called with a kept block whose content is about to be lost.
        self.on_evict: Callable[[int], None] = lambda block: None
        self.num_allocations = [0] * num_blocks
        self._free: deque[int] = deque(range(num_blocks))
        self._holders: dict[int, int] = {}
        self._known: set[int] = set()  # content may be shared: held or kept
        self._kept: dict[int, None] = {}  # in order of release

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out: free ones and kept ones."""
        return len(self._free) + len(self._kept)

    @property
    def num_held(self) -> int:
        return len(self._holders)

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks that nobody else holds. The plan sized the pool so that rows can never run out."""
        assert count <= self.num_free, "the plan provides max_seq positions for every row"
        blocks = [self._free.popleft() for _ in range(min(count, len(self._free)))]
        while len(blocks) < count:
            block = next(iter(self._kept))
            del self._kept[block]
            self._known.remove(block)
            self.on_evict(block)
            blocks.append(block)
        for block in blocks:
            self._holders[block] = 1
            self.num_allocations[block] += 1
        return blocks

    def share(self, block: int) -> None:
        """One more holder for a block that is held or kept."""
        if block in self._kept:
            del self._kept[block]
            self._holders[block] = 1
        else:
            self._holders[block] += 1

    def mark_known(self, block: int) -> None:
        """From now on a held block is kept, not freed, when its last holder releases it."""
        assert block in self._holders
        self._known.add(block)

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less for each. The last ones of a sequence are evicted first: what comes before is shared more."""
        for block in reversed(blocks):
            holders = self._holders[block] - 1
            if holders:
                self._holders[block] = holders
                continue
            del self._holders[block]
            if block in self._known:
                self._kept[block] = None
            else:
                self._free.append(block)

    def holders(self, blocks: Iterable[int]) -> list[int]:
        """How many hold each of `blocks`."""
        return [self._holders.get(block, 0) for block in blocks]
