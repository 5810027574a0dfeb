"""Text to token ids and back: tokenizers, incremental decoding, stop strings, chat templates.

Knows nothing of tensors or HTTP. Every function here is synchronous and may run on any thread.
"""

from __future__ import annotations

from poot.engine.text.chat import render_chat, select_template
from poot.engine.text.detokenizer import Detokenizer
from poot.engine.text.loading import load_tokenizer
from poot.engine.text.stop import StopMatcher
from poot.engine.text.template import ChatTemplate, check_chat_template, is_named_template
from poot.engine.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "StopMatcher",
    "Tokenizer",
    "check_chat_template",
    "is_named_template",
    "load_tokenizer",
    "render_chat",
    "select_template",
]
