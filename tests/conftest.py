"""What every test gets: both event loops, time that costs nothing on trio, and a limit on how long it may hang."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings
from trio.testing import MockClock

import poot.devices  # noqa: F401 - before any test imports torch: it settles how long OpenMP threads spin

TIME_LIMIT_SECONDS = 60.0

# The machines are shared: how long one example takes says nothing about the code.
settings.register_profile("poot", deadline=None)
settings.load_profile("poot")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"time_limit(seconds): how long the test may run in real time, {TIME_LIMIT_SECONDS:.0f} s without it"
    )


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str | tuple[str, dict[str, Any]]:
    """The loops every async test runs on. Trio's clock jumps to the next deadline when all tasks are blocked."""
    if request.param == "trio":
        return "trio", {"clock": MockClock(autojump_threshold=0)}
    return "asyncio"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails a test that hangs, with every thread's traceback; ends the whole run if even that does not get through.

    Real time, so that it guards the tests whose clock is virtual too.
    """
    marker = item.get_closest_marker("time_limit")
    seconds = float(marker.args[0]) if marker is not None else TIME_LIMIT_SECONDS
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        return (yield)

    def out_of_time(number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)
        pytest.fail(f"the test ran for more than {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(2 * seconds, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
