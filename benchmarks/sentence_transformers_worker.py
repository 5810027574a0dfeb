"""sentence-transformers in a process of its own. Run by embed.py with an interpreter that has it.

One JSON object a line, in and out. `{"texts", "batch_size"}` is answered with `{"seconds"}` of one `encode`;
`{"forward": texts}` with `{"seconds": [...]}` of the bare forward pass of each text, tokenized before the clock starts.
"""

from __future__ import annotations

import json
import sys
import time

import sentence_transformers
import torch
from sentence_transformers import SentenceTransformer


def encode(model: SentenceTransformer, texts: list[str], batch_size: int) -> float:
    started = time.perf_counter()
    model.encode(texts, batch_size=batch_size, show_progress_bar=False)
    return time.perf_counter() - started


def forward(model: SentenceTransformer, texts: list[str]) -> list[float]:
    times = []
    with torch.inference_mode():
        for text in texts:
            features = model.preprocess([text])
            started = time.perf_counter()
            model(features)
            times.append(time.perf_counter() - started)
    return times


def main() -> None:
    model = SentenceTransformer(sys.argv[1], device="cpu")
    version = f"sentence-transformers {sentence_transformers.__version__}, torch {torch.__version__}"
    print(json.dumps({"version": f"{version}, {torch.get_num_threads()} threads"}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if "forward" in question:
            print(json.dumps({"seconds": forward(model, question["forward"])}), flush=True)
        else:
            print(json.dumps({"seconds": encode(model, question["texts"], question["batch_size"])}), flush=True)


if __name__ == "__main__":
    main()
