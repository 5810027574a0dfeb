"""Which KV blocks hold which text: the prefix cache's index.

A block's keys and values depend on all tokens up to its end, so a block is known by its predecessor and its own tokens.
Each known block is a node; its key is (number of the predecessor's node, its token ids). Keys are compared as they
are, not by a digest of them, so that two texts never meet in one block. Numbers of nodes are never used twice: a node
whose predecessor was evicted can no longer be found, and goes when its own block does.

Source: Kwon et al., PagedAttention (2023), for blocks shared between sequences; the chain of full blocks is vLLM's
automatic prefix caching.
"""

from __future__ import annotations

from collections.abc import Sequence

from poot.engine.kv.allocator import BlockAllocator

# The node before every sequence's first block.
ROOT = 0

Key = tuple[int, tuple[int, ...]]


class PrefixIndex:
    """Finds and enters full blocks. Holds no block itself: what nobody else holds, `allocator` may evict.

    Args:
        allocator: the pool's bookkeeping; this index is the one that hears of its evictions.
    """

    def __init__(self, allocator: BlockAllocator, block_size: int) -> None:
        self._allocator = allocator
        self._block_size = block_size
        self._nodes: dict[Key, tuple[int, int]] = {}  # key -> (node, block)
        self._keys: dict[int, Key] = {}  # block -> its node's key
        self._num_nodes = ROOT
        allocator.on_evict = self._forget

    def __len__(self) -> int:
        return len(self._nodes)

    def key(self, node: int, token_ids: Sequence[int], start: int) -> Key:
        """The key of the block that follows `node` and holds positions `start` on; all of its tokens are there."""
        return node, tuple(token_ids[start : start + self._block_size])

    def take(self, key: Key) -> tuple[int, int] | None:
        """The node and block of `key`, one holder more for the block; None where it is not there."""
        found = self._nodes.get(key)
        if found is not None:
            self._allocator.share(found[1])
        return found

    def enter(self, key: Key, block: int) -> int:
        """The node of `key`, now that `block` holds it. Where another block does already, that one stays."""
        found = self._nodes.get(key)
        if found is not None:
            return found[0]
        self._num_nodes += 1
        self._nodes[key] = self._num_nodes, block
        self._keys[block] = key
        self._allocator.mark_known(block)
        return self._num_nodes

    def _forget(self, block: int) -> None:
        del self._nodes[self._keys.pop(block)]
