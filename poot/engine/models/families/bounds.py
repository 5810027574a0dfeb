"""How large a config may say a model is: far above every model there is.

They keep a hostile file from asking for giant lists before its tensors, which must match, were looked at.
"""

from __future__ import annotations

MAX_LAYERS = 2048
MAX_HEADS = 65536
MAX_HEAD_DIM = 16384
MAX_WIDTH = 2**24
MAX_POSITIONS = 2**31 - 1
MAX_MULTIPLIER = 1e9
