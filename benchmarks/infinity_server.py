"""infinity-emb as a peer: its own server process on a free port of the loopback address."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.embed_client import EmbeddingClient
from benchmarks.peer_server import PeerServer


class InfinityServer(PeerServer):
    """Runs infinity-emb of the interpreter `python`; a context manager that ends the process.

    Attributes:
        client: asks it.
    """

    def __init__(self, python: str, model: Path, *, environment: Mapping[str, str], num_threads: int) -> None:
        # The package cannot be run with -m; this is what its console script does.
        command = [python, "-c", "from infinity_emb.cli import cli; cli()", "v2", "--model-id", str(model)]
        command += ["--served-model-name", model.name, "--host", "127.0.0.1", "--device", "cpu", "--engine", "torch"]
        command += ["--no-bettertransformer", "--log-level", "error"]
        quiet = {**environment, "DO_NOT_TRACK": "1"}
        super().__init__("infinity-emb", command, "/health", environment=quiet, num_threads=num_threads)
        self.client = EmbeddingClient(self.port, "/embeddings", model.name)
