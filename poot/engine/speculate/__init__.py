"""Speculative decoding: tokens proposed by something cheap, then verified by the model in one pass.

The model draws its own token at each proposed position, with the random number that belongs to that position, and a
proposal stands while it agrees. What is generated is therefore what would be generated without speculation
(Leviathan et al. 2023, with the target's own draw in place of rejection sampling).
"""
