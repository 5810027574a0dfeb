"""Small models are made once for the whole session, when a test first asks for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.engine.models.small_models import CASES, SmallModel, make_small_model


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SmallModel]:
    """The small model of the case of a name."""
    folder = tmp_path_factory.mktemp("small_models")
    made: dict[str, SmallModel] = {}

    def get(name: str) -> SmallModel:
        if name not in made:
            made[name] = make_small_model(CASES[name], folder)
        return made[name]

    return get


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny matrices are slower on several threads, and much slower where other processes want the cores too."""
    torch.set_num_threads(1)
    monkeypatch.setattr("poot.devices.torch_device.num_threads", lambda: 1)
