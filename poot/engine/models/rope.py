"""Rotary position embedding: frequencies of every scaling poot knows, and the tables made from them.

A pair i of a head turns by position * inverse_frequency[i] (Su et al. 2021, equation 15). Scalings change the
frequencies only: position interpolation (Chen et al. 2023), YaRN (Peng et al. 2023), and Llama 3.1's. Computed in
float64 and rounded once, when the table is made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from poot.devices.base import Device, RopeTable, Weight
from poot.devices.formats import Format
from poot.engine.models.spec import RopeSpec

# YaRN's bounds on full turns within the original context, between which its ramp runs (paper, section 3.2).
YARN_BETA_FAST = 32.0
YARN_BETA_SLOW = 1.0


def base_frequencies(theta: float, rotary_dim: int) -> tuple[float, ...]:
    """The unscaled inverse frequencies theta ** (-2i / rotary_dim), rotary_dim / 2 of them."""
    return tuple(theta ** -(2 * i / rotary_dim) for i in range(rotary_dim // 2))


def linear(frequencies: Sequence[float], factor: float) -> tuple[float, ...]:
    """Position interpolation: every frequency divided by `factor`."""
    return tuple(frequency / factor for frequency in frequencies)


def divided(frequencies: Sequence[float], factors: Sequence[float]) -> tuple[float, ...]:
    """Each frequency divided by its own factor: LongRoPE, and Llama 3.1's scaling as GGUF's rope_freqs stores it."""
    return tuple(frequency / factor for frequency, factor in zip(frequencies, factors, strict=True))


def llama3(
    frequencies: Sequence[float],
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_positions: int,
) -> tuple[float, ...]:
    """Llama 3.1's scaling: short waves stay, long waves are interpolated, those between are blended.

    A wave is short when it turns more than `high_freq_factor` times within `original_max_positions`, long when it
    turns less than `low_freq_factor` times.
    """
    scaled = []
    for frequency in frequencies:
        turns = original_max_positions * frequency / (2 * math.pi)
        if turns > high_freq_factor:
            scaled.append(frequency)
        elif turns < low_freq_factor:
            scaled.append(frequency / factor)
        else:
            share = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
            scaled.append((1 - share) * frequency / factor + share * frequency)
    return tuple(scaled)


def yarn(
    theta: float,
    rotary_dim: int,
    *,
    factor: float,
    original_max_positions: int,
    beta_fast: float = YARN_BETA_FAST,
    beta_slow: float = YARN_BETA_SLOW,
    truncate: bool = True,
) -> tuple[float, ...]:
    """YaRN's "NTK-by-parts" frequencies (paper, equations 13 to 15 and its reference implementation).

    Args:
        truncate: round the ramp's ends outwards to whole pairs, as the reference implementation does.
    """

    def pair_that_turns(turns: float) -> float:
        return rotary_dim * math.log(original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001  # the reference implementation's guard against a ramp of no width
    scaled = []
    for pair, frequency in enumerate(base_frequencies(theta, rotary_dim)):
        interpolated_share = min(max((pair - low) / (high - low), 0.0), 1.0)
        scaled.append(interpolated_share * frequency / factor + (1 - interpolated_share) * frequency)
    return tuple(scaled)


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """YaRN's factor on cosines and sines, 0.1 * mscale * ln(factor) + 1 (paper, equation 22); 1 without scaling."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def long_rope_attention_factor(factor: float, original_max_positions: int) -> float:
    """LongRoPE's factor on cosines and sines, sqrt(1 + ln(factor) / ln(original_max_positions)); 1 without scaling."""
    return math.sqrt(1 + math.log(factor) / math.log(original_max_positions)) if factor > 1.0 else 1.0


def rope_table(device: Device, spec: RopeSpec, max_positions: int) -> RopeTable:
    """Cosines and sines of positions 0 to `max_positions` on the device."""
    positions = torch.arange(max_positions, dtype=torch.float64)
    frequencies = torch.tensor(spec.inverse_frequencies, dtype=torch.float64)
    angles = torch.outer(positions, frequencies)

    def on_device(name: str, values: torch.Tensor) -> torch.Tensor:
        rounded = (values * spec.attention_factor).float().flatten()
        weight = Weight(name=name, shape=tuple(rounded.shape), format=Format.F32, data=rounded)
        return device.vector(weight).view(values.shape)

    return RopeTable(
        cos=on_device("rope.cos", angles.cos()),
        sin=on_device("rope.sin", angles.sin()),
        rotary_dim=spec.rotary_dim,
        interleaved=spec.interleaved,
    )
