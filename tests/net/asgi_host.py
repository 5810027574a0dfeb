"""An ASGI host of one request that does what a test says: messages in as a script, messages out kept."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc

from poot.config import NetConfig
from poot.errors import PootError
from poot.metrics import Metrics
from poot.net.asgi import AsgiApplication
from poot.net.exchange import Application
from tests.net.peers import settle

Fields = list[tuple[bytes, bytes]]


def http_scope(method: str = "GET", path: str = "/", fields: Fields | None = None, **changes: Any) -> dict[str, Any]:
    """A scope as Hypercorn makes it. `changes` replace its keys; those that are None are left out."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.1"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost:8000"), *(fields or [])],
        "client": ("10.0.0.1", 55555),
        "server": ("127.0.0.1", 8000),
        **changes,
    }
    return {key: value for key, value in scope.items() if value is not None}


def post_scope(num_bytes: int, **changes: Any) -> dict[str, Any]:
    """The scope of a POST whose body has that Content-Length."""
    return http_scope("POST", fields=[(b"content-length", b"%d" % num_bytes)], **changes)


class Call:
    """One call of an application by its host.

    Attributes:
        sent: the messages the application sent, in order.
        num_received: how many it has received.
        before_send: awaited with each message before it counts as sent; may wait or raise.
    """

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope
        self.sent: list[dict[str, Any]] = []
        self.num_received = 0
        self.before_send: Callable[[dict[str, Any]], Awaitable[None]] | None = None
        self._messages: deque[dict[str, Any]] = deque()
        self._arrival = anyio.Event()

    def feed(self, kind: str, **message: Any) -> None:
        """Has the host give a message."""
        self._messages.append({"type": kind, **message})
        self._arrival.set()

    def body(self, data: bytes, *, more: bool = False) -> None:
        """Has the host give a piece of the body."""
        self.feed("http.request", body=data, more_body=more)

    async def run(self, application: AsgiApplication) -> None:
        await application(self.scope, self.receive, self.send)

    async def receive(self) -> dict[str, Any]:
        while not self._messages:
            self._arrival = anyio.Event()
            await self._arrival.wait()
        self.num_received += 1
        return self._messages.popleft()

    async def send(self, message: Any) -> None:
        if self.before_send is not None:
            await self.before_send(message)
        self.sent.append(dict(message))

    @property
    def kinds(self) -> list[str]:
        return [message["type"] for message in self.sent]

    @property
    def status(self) -> int:
        assert self.sent[0]["type"] == "http.response.start"
        assert isinstance(self.sent[0]["status"], int)
        return self.sent[0]["status"]

    @property
    def headers(self) -> dict[bytes, bytes]:
        fields = self.sent[0]["headers"]
        assert len(dict(fields)) == len(fields), "a field is sent twice"
        return dict(fields)

    @property
    def content(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def is_ended(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False


class Host:
    """Runs an application's lifespan; calls of it run beside each other."""

    def __init__(
        self,
        application: Application,
        *,
        names: tuple[str, ...] = (),
        failure: PootError | None = None,
        **timeouts: Any,
    ) -> None:
        self.metrics = Metrics()
        self.is_open = False
        self._opened_application = application
        self._failure = failure
        self.asgi = AsgiApplication(self._open, NetConfig(**timeouts), metrics=self.metrics, names=names)
        self.lifespan = Call({"type": "lifespan", "asgi": {"version": "3.0"}})

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[Application]:
        if self._failure is not None:
            raise self._failure
        self.is_open = True
        yield self._opened_application
        self.is_open = False


@asynccontextmanager
async def hosting(application: Application, **settings: Any) -> AsyncGenerator[tuple[Host, anyio.abc.TaskGroup]]:
    """A host whose application has started, and a task group for its calls; shuts down on leaving."""
    host = Host(application, **settings)
    async with anyio.create_task_group() as task_group:
        task_group.start_soon(host.lifespan.run, host.asgi)
        host.lifespan.feed("lifespan.startup")
        await settle()
        assert host.lifespan.kinds == ["lifespan.startup.complete"]
        yield host, task_group
        host.lifespan.feed("lifespan.shutdown")
    assert host.lifespan.kinds == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert not host.is_open
