"""The records the engine works on: what a caller asks for, what it gets back, and one sequence in between.

A sequence is one generation in flight; a request with n choices opens n of them. Plain data, no torch, no waiting.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from poot.engine.kv.prefix_index import ROOT
from poot.engine.sampling.token_counts import TokenCounts
from poot.engine.speculate.adaptive import ProposalLength


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How tokens are drawn. Ranges were checked at the edge.

    Attributes:
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: 1 is off.
        min_p: 0 is off.
        seed: 64-bit seed; the edge draws one where the request names none.
        num_logprobs: top log-probabilities to report with each token; 0 is the drawn token's own only, None is none.
        logit_bias: (token id, what is added to its logit), each id once.
        presence_penalty, frequency_penalty: 0 is off; over generated tokens.
        repetition_penalty: 1 is off; over prompt and generated tokens.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    num_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0

    @property
    def has_penalties(self) -> bool:
        """Whether what was drawn before changes what is drawn next, beside the model."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """One sequence to generate.

    Attributes:
        prompt_ids: at least one token id, at most max_seq - 1.
        max_tokens: most tokens to generate; cut by the engine to what max_seq leaves. 0 computes the prompt alone.
        min_tokens: stop ids cannot be drawn before this many tokens.
        stop: strings that end the text; neither they nor anything after them is sent.
        ignore_eos: go on past the model's end-of-sequence ids.
        choice: index of the choice within its request.
        stop_token_ids: tokens that end the text beside the model's own, also with ignore_eos.
        includes_stop: send the stop string, or the text of the token, that ended the text.
        skips_special: special tokens have no text.
        num_prompt_logprobs: as num_logprobs, for the tokens of the prompt; all of its positions are then computed,
            whatever is cached.
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    choice: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    includes_stop: bool = False
    skips_special: bool = True
    num_prompt_logprobs: int | None = None

    def stop_ids(self, eos_ids: AbstractSet[int]) -> frozenset[int]:
        """Every token that ends this sequence, `eos_ids` being the model's own."""
        return self.stop_token_ids if self.ignore_eos else self.stop_token_ids | eos_ids


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token with its log-probabilities, as text pieces and raw bytes.

    `token_bytes` are the token's own bytes, which need not be whole characters. `top` holds
    (token id, bytes, logprob), most likely first.
    """

    token_id: int
    token_bytes: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """The sequence left the queue and holds a row."""


@dataclass(frozen=True, slots=True)
class PromptScored:
    """The log-probabilities of the prompt's tokens from the second on; comes before the first `Delta`.

    The first token has none; `first_bytes` are its bytes.
    """

    first_bytes: bytes
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that may be sent, after the stop strings had their say. Every generated token is in one delta.

    Text may be empty while a character or a stop string is incomplete; `logprobs` lists the tokens whose text is
    complete with this delta (empty where none were asked for).
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds a sequence spent waiting for a row, in prefill and in decode."""

    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a sequence that ran to its end.

    Attributes:
        cumulative_logprob: sum over all generated tokens, None where no log-probabilities were asked for.
        num_cached_tokens: tokens of the prompt whose keys and values were there already.
        num_drafted_tokens, num_accepted_tokens: proposed by speculation, and taken of those.
    """

    reason: FinishReason
    num_prompt_tokens: int
    num_generated_tokens: int
    timings: Timings
    cumulative_logprob: float | None = None
    num_cached_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a sequence that the engine could not finish: drained away, or our own error.

    `draining` tells the two apart.
    """

    message: str
    draining: bool


Event = Opened | PromptScored | Delta | Finished | Failed


class SequenceState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One generation in flight, owned by the scheduler.

    Attributes:
        token_ids: prompt and generated tokens.
        num_prompt_tokens: how many of them are the prompt.
        num_computed_tokens: how many already have their keys and values in the pool.
        max_total_tokens: prompt plus the most this sequence may generate.
        row: the row it holds while running.
        block_table: its KV blocks, in order of position.
        num_known_blocks: how many of them, from the first on, are full and known to the prefix index.
        prefix_node: the index's node of the last of those.
        carried_sample: the newest token is drawn by a step in flight, as its sample of this number, and a placeholder
            stands for it; None where all tokens are known.
        counts: what the penalties go by; None until a step needs it.
        num_cached_tokens: tokens of the prompt whose keys and values were there already.
        num_drafted_tokens, num_accepted_tokens: proposed by speculation, and taken of those.
        proposal_length: how many to propose next; None until a step asks.
        draft_state: what the drafter keeps of this sequence; its own business.
    """

    request: GenerationRequest
    token_ids: list[int]
    num_prompt_tokens: int
    max_total_tokens: int
    stop_ids: frozenset[int]
    num_computed_tokens: int = 0
    state: SequenceState = SequenceState.WAITING
    row: int | None = None
    block_table: list[int] = field(default_factory=list)
    num_known_blocks: int = 0
    prefix_node: int = ROOT
    carried_sample: int | None = None
    counts: TokenCounts | None = None
    num_cached_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    proposal_length: ProposalLength | None = None
    draft_state: Any = None

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens
