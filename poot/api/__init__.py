"""The HTTP API: OpenAI-shaped requests checked, given to the engine, and answered. `Api` is its whole face."""

from __future__ import annotations

from poot.api.routes import Api

__all__ = ["Api"]
