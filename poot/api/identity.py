"""What every answer of this server says of itself: the model's id and a fingerprint of what computes."""

from __future__ import annotations

import hashlib
import os
import time
from functools import lru_cache
from typing import Any

from poot import __version__
from poot.api.served import ServedModel


def system_fingerprint(model: ServedModel) -> str:
    """Stays the same while build, model and backend do; with a seed, equal fingerprints mean equal answers."""
    return _fingerprint(model.model_id, model.backend, model.weight_bytes)


@lru_cache(maxsize=1)
def _fingerprint(model_id: str, backend: str, weight_bytes: int) -> str:
    facts = "\0".join([__version__, model_id, backend, str(weight_bytes)])
    return "fp_" + hashlib.sha256(facts.encode()).hexdigest()[:12]


def new_envelope(kind: str, id_prefix: str, model: ServedModel) -> dict[str, Any]:
    """The fields an answer, or every chunk of a stream, begins with. `kind` is the `object` field."""
    return {
        "id": f"{id_prefix}-{os.urandom(12).hex()}",
        "object": kind,
        "created": int(time.time()),
        "model": model.model_id,
        "system_fingerprint": system_fingerprint(model),
    }
