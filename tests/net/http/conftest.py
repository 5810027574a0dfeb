from __future__ import annotations

import pytest

from tests.net.http.script import Script


@pytest.fixture(params=["whole", "bytewise"])
def script(request: pytest.FixtureRequest) -> Script:
    return Script(is_bytewise=request.param == "bytewise")
