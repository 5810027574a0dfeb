"""Philox4x32-10 against the known answers of Random123 1.14 (tests/kat_vectors, the lines "philox4x32 10")."""

from __future__ import annotations

import numpy as np
import pytest

from poot.devices.philox import philox4x32, uniform

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter: tuple[int, int, int, int], key: tuple[int, int], answer: tuple[int, ...]) -> None:
    assert philox4x32(counter, key) == answer


def test_uniform_is_made_of_the_first_two_words() -> None:
    # From the known answer of counter 0 under key 0.
    assert uniform(0, 0, 0) == ((0x6627E8D5 >> 5) * 2**26 + (0xE169C58D >> 6)) / 2**53


def test_seed_choice_and_position_each_change_the_number() -> None:
    cases = [(0, 0, 0), (1, 0, 0), (1 << 32, 0, 0), (2**64 - 1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)]
    numbers = {uniform(*case) for case in cases}
    assert len(numbers) == len(cases)


def test_numbers_are_spread_evenly() -> None:
    numbers = np.array([uniform(7, 0, position) for position in range(4000)])
    assert 0 <= numbers.min()
    assert numbers.max() < 1
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    # Chi-square with 19 degrees of freedom passes 43.8 once in a thousand seeds.
    assert ((counts - 200.0) ** 2 / 200.0).sum() < 43.8
