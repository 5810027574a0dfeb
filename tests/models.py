"""Where tests find the real models: the cache folder that scripts/fetch_models.py fills."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import fetch_models

OPTIONAL_MODELS = frozenset({"gemma3"})  # `make test` does not fetch these; their tests skip, saying so


def require_model(name: str) -> Path:
    """The path to serve for a fetched model: the .gguf file, or the safetensors directory of `minilm`.

    Fails the test when the model was not fetched (skips it for an optional one); presence is checked by name and not
    by hash, which the fetch script did.
    """
    model = fetch_models.MODELS[name]
    folder = fetch_models.default_models_dir() / name
    if not all((folder / file.path).is_file() for file in model.files):
        how = f"model {name} is not in {folder}: run `python scripts/fetch_models.py {name}`"
        if name in OPTIONAL_MODELS:
            pytest.skip(how)
        pytest.fail(f"{how} (`make test` does)", pytrace=False)
    return folder / model.files[0].path if len(model.files) == 1 else folder
