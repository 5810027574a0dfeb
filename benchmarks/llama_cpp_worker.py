"""llama.cpp as a peer: answers the same questions as engine_worker.py, through llama-cpp-python's low-level binding.

Run by decode.py in a process and, if wanted, an interpreter of its own: a peer built for another processor may crash,
and that must not take the benchmark down. One JSON object a line, in and out; see `benchmarks/worker.py`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from typing import Any

import llama_cpp
import numpy as np


class Peer:
    """A model and a context for up to `num_rows` sequences, on `num_threads` threads."""

    def __init__(self, path: str, *, num_threads: int, num_rows: int, max_seq: int) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = max_seq * num_rows
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max = num_rows
        params.n_threads = params.n_threads_batch = num_threads
        params.kv_unified = False  # a cache of its own for each sequence, as poot has
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def _decode(self, tokens: list[tuple[int, int, int]], samples: list[int]) -> list[int]:
        """Run (token id, position, row) triples in one call; the likeliest next ids at the indices `samples`."""
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for index, (token_id, position, row) in enumerate(tokens):
                batch.token[index] = token_id
                batch.pos[index] = position
                batch.n_seq_id[index] = 1
                batch.seq_id[index][0] = row
                batch.logits[index] = index in samples
            if llama_cpp.llama_decode(self._context, batch) != 0:
                raise RuntimeError("llama_decode failed")
            ids = []
            for index in samples:
                pointer = llama_cpp.llama_get_logits_ith(self._context, index)
                address = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
                ids.append(int(np.ctypeslib.as_array(address, shape=(self._vocab_size,)).argmax()))
            return ids
        finally:
            llama_cpp.llama_batch_free(batch)

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def prefill(self, prompts: list[list[int]]) -> float:
        """Tokens a second over one prompt, its first token's draw included."""
        self._clear()
        (prompt,) = prompts
        started = time.perf_counter()
        self._decode([(token_id, position, 0) for position, token_id in enumerate(prompt)], [len(prompt) - 1])
        return len(prompt) / (time.perf_counter() - started)

    def decode(self, prompts: list[list[int]], num_tokens: int) -> float:
        """Tokens a second of all rows together, greedy, after one prompt a row."""
        self._clear()
        last_ids = []
        for row, prompt in enumerate(prompts):
            tokens = [(token_id, position, row) for position, token_id in enumerate(prompt)]
            last_ids += self._decode(tokens, [len(prompt) - 1])
        rows = list(range(len(prompts)))
        started = time.perf_counter()
        for step in range(num_tokens - 1):
            tokens = [(last_ids[row], len(prompts[row]) + step, row) for row in rows]
            last_ids = self._decode(tokens, rows)
        return len(prompts) * (num_tokens - 1) / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--max-seq", type=int, required=True)
    options = parser.parse_args()
    quiet = llama_cpp.llama_log_callback(lambda level, text, user_data: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    peer = Peer(options.model, num_threads=options.threads, num_rows=options.rows, max_seq=options.max_seq)
    system = llama_cpp.llama_print_system_info().decode()
    ready = {"version": f"llama-cpp-python {llama_cpp.__version__}", "system": system}
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        question: dict[str, Any] = json.loads(line)
        if question["measure"] == "prefill":
            rate = peer.prefill(question["prompts"])
        else:
            rate = peer.decode(question["prompts"], question["num_tokens"])
        print(json.dumps({"tokens_per_second": rate}), flush=True)


if __name__ == "__main__":
    main()
