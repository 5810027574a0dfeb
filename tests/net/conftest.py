from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from tests.net.virtual_time import VirtualTimeLoop


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both loops on a virtual clock; tests that must also hold on uvloop override the parameters."""
    if request.param == "trio":
        return "trio", {"clock": MockClock(autojump_threshold=0)}
    if request.param == "uvloop":
        return "asyncio", {"use_uvloop": True}
    return "asyncio", {"loop_factory": VirtualTimeLoop}


every_loop = pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop", "trio"], indirect=True)
