"""poot: one process that serves one model over HTTP."""

__version__ = "0.1.0"
