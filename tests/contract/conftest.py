from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from tests.contract.asking import Protocol
from tests.net.virtual_time import VirtualTimeLoop


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both loops on a virtual clock."""
    if request.param == "trio":
        return "trio", {"clock": MockClock(autojump_threshold=0)}
    return "asyncio", {"loop_factory": VirtualTimeLoop}


@pytest.fixture(params=list(Protocol), ids=lambda protocol: protocol.value)
def protocol(request: pytest.FixtureRequest) -> Protocol:
    """The protocol that the client of a test speaks."""
    given: Protocol = request.param
    return given
