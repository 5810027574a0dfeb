"""Reads rope from config.json, in both spellings and with every scaling poot knows.

transformers 5 writes `rope_parameters`, nested by layer type where layers differ; older files have `rope_theta`
beside `rope_scaling`. A field that is not part of its rope type is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from poot.engine.checkpoint.fields import ConfigReader, quote
from poot.engine.models import rope
from poot.engine.models.families.bounds import MAX_POSITIONS
from poot.engine.models.spec import RopeSpec
from poot.errors import CheckpointError

ORIGINAL_CONTEXT = "original_max_position_embeddings"

COMMON_FIELDS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
FIELDS = {
    # transformers reads none of these without scaling; some exporters leave them behind.
    "default": frozenset({"factor", ORIGINAL_CONTEXT}),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", ORIGINAL_CONTEXT}),
    "yarn": frozenset(
        {
            "factor",
            ORIGINAL_CONTEXT,
            "beta_fast",
            "beta_slow",
            "attention_factor",
            "mscale",
            "mscale_all_dim",
            "truncate",
        }
    ),
    "longrope": frozenset({"factor", ORIGINAL_CONTEXT, "short_factor", "long_factor", "attention_factor"}),
}

# Factors of scalings and frequencies, and bounds on turns: any value in use lies far inside.
SMALLEST, LARGEST = 1e-6, 1e6
LARGEST_THETA = 1e15


class HubRope:
    """The rope fields that hold for one type of layer. Arguments are those of `HubConfig.rope`."""

    def __init__(
        self,
        config: ConfigReader,
        *,
        layer_type: str | None,
        theta_key: str,
        default_theta: float,
        is_scaled: bool,
        head_dim: int,
        max_positions: int,
    ) -> None:
        self._config = config
        self._max_positions = max_positions
        parameters = config.optional_section("rope_parameters")
        if parameters is not None and layer_type is not None:
            parameters = parameters.require_section(layer_type)
        old = config.optional_section("rope_scaling")
        if parameters is None:
            parameters = old if old is not None and is_scaled else ConfigReader({}, where=config.where)
        self._parameters = parameters
        theta = config.optional_float(theta_key, default_theta)
        self._theta = parameters.optional_float("rope_theta", theta)
        if not 1.0 < self._theta <= LARGEST_THETA:
            raise CheckpointError(
                f"rope_theta is {self._theta:g}; it must be above 1 and at most {LARGEST_THETA:g}", path=config.where
            )
        share = config.optional_float("partial_rotary_factor", 1.0, minimum=0.0, maximum=1.0)
        share = parameters.optional_float("partial_rotary_factor", share, minimum=0.0, maximum=1.0)
        self._rotary_dim = int(head_dim * share)
        if self._rotary_dim < 2 or self._rotary_dim % 2:
            raise CheckpointError(
                f"rope turns {self._rotary_dim} dimensions of {head_dim}; it must be an even number from 2",
                path=config.where,
            )

    def read(self, long_rope_names: Sequence[str]) -> tuple[RopeSpec, int]:
        """The rope, and the positions up to which it is exact."""
        parameters = self._parameters
        kind = parameters.optional_str("rope_type", parameters.optional_str("type", "default"))
        if kind in long_rope_names:
            kind = "longrope"
        if kind not in FIELDS:
            raise CheckpointError(
                f"rope type {quote(kind)} is not supported; poot has {', '.join(FIELDS)}", path=parameters.where
            )
        for key in parameters.mapping:
            if key not in COMMON_FIELDS | FIELDS[kind] and parameters.has(key):
                raise CheckpointError(f"{key} is not a field of rope type {kind}", path=parameters.where)
        max_positions = self._max_positions
        attention_factor = 1.0
        frequencies = rope.base_frequencies(self._theta, self._rotary_dim)
        if kind == "linear":
            frequencies = rope.linear(frequencies, self._factor())
        elif kind == "llama3":
            frequencies = self._llama3(frequencies)
        elif kind == "yarn":
            frequencies, attention_factor = self._yarn()
        elif kind == "longrope":
            frequencies, attention_factor, max_positions = self._long_rope(frequencies)
        spec = RopeSpec(inverse_frequencies=frequencies, rotary_dim=self._rotary_dim, attention_factor=attention_factor)
        return spec, max_positions

    def _factor(self) -> float:
        return self._parameters.require_float("factor", minimum=SMALLEST, maximum=LARGEST)

    def _original_context(self) -> int:
        return self._parameters.optional_int(ORIGINAL_CONTEXT, self._max_positions, minimum=2, maximum=MAX_POSITIONS)

    def _llama3(self, frequencies: Sequence[float]) -> tuple[float, ...]:
        low = self._parameters.require_float("low_freq_factor", minimum=SMALLEST, maximum=LARGEST)
        high = self._parameters.require_float("high_freq_factor", minimum=SMALLEST, maximum=LARGEST)
        if high <= low:
            raise self._parameters.refuse("high_freq_factor", f"above low_freq_factor, {low:g}")
        return rope.llama3(
            frequencies,
            factor=self._factor(),
            low_freq_factor=low,
            high_freq_factor=high,
            original_max_positions=self._original_context(),
        )

    def _yarn(self) -> tuple[tuple[float, ...], float]:
        parameters = self._parameters
        factor = self._factor()
        frequencies = rope.yarn(
            self._theta,
            self._rotary_dim,
            factor=factor,
            original_max_positions=self._original_context(),
            beta_fast=parameters.optional_float("beta_fast", rope.YARN_BETA_FAST, minimum=SMALLEST, maximum=LARGEST),
            beta_slow=parameters.optional_float("beta_slow", rope.YARN_BETA_SLOW, minimum=SMALLEST, maximum=LARGEST),
            truncate=parameters.optional_bool("truncate", True),
        )
        attention_factor = parameters.optional_float("attention_factor", None, minimum=SMALLEST, maximum=LARGEST)
        if attention_factor is None:
            mscale = parameters.optional_float("mscale", 0.0, minimum=0.0, maximum=LARGEST)
            mscale_all_dim = parameters.optional_float("mscale_all_dim", 0.0, minimum=0.0, maximum=LARGEST)
            attention_factor = rope.yarn_attention_factor(factor)
            if mscale and mscale_all_dim:
                attention_factor = rope.yarn_attention_factor(factor, mscale) / rope.yarn_attention_factor(
                    factor, mscale_all_dim
                )
        return frequencies, attention_factor

    def _long_rope(self, frequencies: Sequence[float]) -> tuple[tuple[float, ...], float, int]:
        parameters = self._parameters
        # Phi 3 keeps the original context beside the rope fields, and that one goes before theirs.
        original = self._config.optional_int(ORIGINAL_CONTEXT, self._original_context(), minimum=2)
        short = parameters.float_list("short_factor", length=len(frequencies), minimum=SMALLEST, maximum=LARGEST)
        factor = parameters.optional_float("factor", self._max_positions / original, minimum=SMALLEST, maximum=LARGEST)
        attention_factor = parameters.optional_float(
            "attention_factor", rope.long_rope_attention_factor(factor, original), minimum=SMALLEST, maximum=LARGEST
        )
        return rope.divided(frequencies, short), attention_factor, min(self._max_positions, original)
