"""Random numbers that depend on nothing but what they are for: Philox4x32-10.

A counter-based generator is a keyed function of a counter, so the number of a token is the same whatever the batch,
the chunking or the order in which rows were computed. Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
easy as 1, 2, 3", SC 2011, section 3.4 and table 2; known answers come with their Random123 library.
"""

from __future__ import annotations

_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_WORD = 0xFFFFFFFF
_NUM_ROUNDS = 10

Words = tuple[int, int, int, int]


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Four random 32-bit words for a counter of four 32-bit words under a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & _WORD,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & _WORD,
        )
        k0 = (k0 + _WEYL_0) & _WORD
        k1 = (k1 + _WEYL_1) & _WORD
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1), a multiple of 2 ** -53, for the token at `position` of `choice` of the request with `seed`.

    The 64-bit seed is the key, (choice, position, 0, 0) the counter. The top 27 and 26 bits of the first two words
    make the 53 bits of a double.
    """
    counter = (choice & _WORD, position & _WORD, 0, 0)
    high, low, _, _ = philox4x32(counter, (seed & _WORD, (seed >> 32) & _WORD))
    bits: int = ((high >> 5) << 26) | (low >> 6)
    return bits * 2.0**-53
