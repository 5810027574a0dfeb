"""Which tokens end a generation.

The rule: the union of
1. what the model file names: eos_token_id of generation_config.json and of config.json (one or a list), eos_token of
   tokenizer_config.json; in GGUF the ids of eos, eot (end of turn) and eom (end of message);
2. every well-known end-of-text or end-of-turn token, by its text, that the file holds as an added token (GGUF: control
   or user-defined). Chat models are trained to end a turn with one that their files often fail to name.

One exception: where "<|return|>" exists (the harmony format of gpt-oss), "<|end|>" ends a message within a turn and
generation goes on after it, unless the file names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# As llama.cpp finds end-of-generation tokens by text (src/llama-vocab.cpp), without those whose text is markup that
# other models use for something else ("</s>", "<eos>" are named by every file that means them).
WELL_KNOWN_END_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<turn|>",
    "<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
)


def find_end_tokens(named: Iterable[int], added_tokens: Mapping[str, int]) -> frozenset[int]:
    """The ids that end a generation.

    Args:
        named: ids that the model file names.
        added_tokens: text and id of every added token.
    """
    well_known = {text: added_tokens[text] for text in WELL_KNOWN_END_TOKENS if text in added_tokens}
    if "<|return|>" in well_known:
        well_known.pop("<|end|>", None)
    return frozenset(named) | frozenset(well_known.values())
