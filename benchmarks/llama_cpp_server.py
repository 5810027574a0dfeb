"""llama-cpp-python's own server as a peer, on a free port of the loopback address."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.peer_server import PeerServer


class LlamaCppServer(PeerServer):
    """Runs `python -m llama_cpp.server` of the interpreter `python`; a context manager that ends the process."""

    def __init__(
        self, python: str, model: str, *, max_seq: int, environment: Mapping[str, str], num_threads: int
    ) -> None:
        command = [python, "-m", "llama_cpp.server", "--model", model, "--n_ctx", str(max_seq), "--host", "127.0.0.1"]
        command += [
            "--n_threads",
            str(num_threads),
            "--n_threads_batch",
            str(num_threads),
            "--interrupt_requests",
            "false",
        ]
        super().__init__("llama.cpp", command, "/v1/models", environment=environment, num_threads=num_threads)
