"""An encode pass's arrays as the cpu device's operations use them, and the pass as a plain call."""

from __future__ import annotations

from dataclasses import dataclass

from poot.devices.base import FloatArray
from poot.devices.cpu_text_attention import TextRun, runs_of
from poot.devices.encode import EncodeStep, Pooling


@dataclass(frozen=True, slots=True)
class CpuPass:
    """What every layer of one pass looks at.

    Attributes:
        runs: neighbouring texts of one length; they cover all tokens in order.
        pooled: for each text its pooling, and the tokens `[first, last)` that it is made from.
    """

    runs: tuple[TextRun, ...]
    pooled: tuple[tuple[Pooling, int, int], ...]

    @property
    def num_texts(self) -> int:
        return len(self.pooled)


def prepare_pass(step: EncodeStep) -> CpuPass:
    """Works out once what all layers use."""
    starts = step.text_starts.tolist()
    skipped = step.pool_starts.tolist()
    pooled = []
    for text, pooling in enumerate(step.pooling):
        first = starts[text] + (skipped[text] if pooling is Pooling.MEAN else 0)
        assert first < starts[text + 1], (first, starts[text + 1])
        pooled.append((pooling, first, starts[text + 1]))
    return CpuPass(runs_of(step.text_starts), tuple(pooled))


@dataclass(frozen=True, slots=True)
class DonePass:
    """A pass that has run."""

    result: FloatArray

    def vectors(self) -> FloatArray:
        return self.result
