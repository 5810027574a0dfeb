"""Every error poot raises on purpose, in one tree, each with the answer it turns into.

    PootError
     ├─ ConfigError            a flag or its value                      startup, exit status 2
     ├─ StartupError           poot cannot start as asked               startup, exit status 1
     │   ├─ NotAvailableError    a feature that is not built yet
     │   ├─ CheckpointError      a model file that is malformed or not supported
     │   ├─ CapacityError        the workload does not fit the device
     │   └─ DeviceError          a named backend whose device is absent
     ├─ RequestError           the client's fault or our load, answered over HTTP
     │   ├─ BadRequest           400
     │   │   ├─ ContextLengthExceeded
     │   │   └─ UnsupportedCapability
     │   ├─ Unauthorized         401
     │   ├─ Forbidden            403
     │   ├─ NotFound             404
     │   ├─ MethodNotAllowed     405
     │   ├─ RequestTimeout       408
     │   ├─ LengthRequired       411
     │   ├─ ContentTooLarge      413
     │   ├─ UnsupportedMediaType 415
     │   ├─ MisdirectedRequest   421
     │   ├─ TooManyRequests      429
     │   ├─ HeadersTooLarge      431
     │   ├─ Overloaded           503 (queue wait, connection cap)
     │   └─ Draining             503
     └─ EngineError            our bug: ends the sequences it touched, answered 500

An error carries its HTTP status, OpenAI error type and code, and the headers its answer needs, as data; `poot.api`
maps them to an answer in one place. A message is written for the person who reads it: it never holds a traceback or
raw bytes from the peer.
"""

from __future__ import annotations

from typing import Any, ClassVar


class PootError(Exception):
    """Base of every deliberate error. `str(error)` is one line fit for a terminal or a JSON answer."""


class ConfigError(PootError):
    """A command-line option or value that cannot be honoured.

    The message names the option, the value and what is allowed. Exit status 2.
    """


class StartupError(PootError):
    """poot was asked for something well formed that it cannot start with. Exit status 1."""


class NotAvailableError(StartupError):
    """A flag of the reference whose feature is not built yet."""

    def __init__(self, feature: str) -> None:
        super().__init__(f"{feature} is not available yet")
        self.feature = feature


class CheckpointError(StartupError):
    """A model file that is malformed, hostile, or of a kind poot does not serve.

    Args:
        message: what is wrong, naming the tensor, key or field.
        path: the file it was found in.
        offset: the byte offset in the file, where one is known.
    """

    def __init__(self, message: str, *, path: str | None = None, offset: int | None = None) -> None:
        place = f"{path}: " if path else ""
        at = f" (at byte {offset})" if offset is not None else ""
        super().__init__(f"{place}{message}{at}")
        self.path = path
        self.offset = offset


class CapacityError(StartupError):
    """The smallest workload the plan may settle on does not fit the device.

    Args:
        message: one line.
        terms: every term of the plan in bytes, by name.
        available_bytes: what the device offered.
    """

    def __init__(self, message: str, *, terms: dict[str, int], available_bytes: int) -> None:
        super().__init__(message)
        self.terms = terms
        self.available_bytes = available_bytes


class DeviceError(StartupError):
    """A backend that was asked for by name and whose device is absent or does not open."""


class RequestError(PootError):
    """A request that is answered with an error; see the subclasses for whose fault it is.

    Args:
        message: what is wrong, for the client.
        param: the request field at fault, as a path such as `messages[0].content`.
        code: a machine-readable code, or None.
        headers: extra answer header fields, such as Retry-After.
        close: whether the HTTP/1.1 connection must be closed after the answer.
    """

    status: ClassVar[int] = 400
    type: ClassVar[str] = "invalid_request_error"
    default_code: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else self.default_code
        self.headers = headers
        self.close = close

    def body(self) -> dict[str, Any]:
        """The OpenAI-shaped error object this error is answered with."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class BadRequest(RequestError):
    """The request is malformed, or a field has a wrong type or value."""


class ContextLengthExceeded(BadRequest):
    """The prompt is longer than max_seq - 1 tokens."""

    default_code = "context_length_exceeded"


class UnsupportedCapability(BadRequest):
    """The loaded model or this build cannot do what the request asks for."""

    default_code = "unsupported_capability"


class Unauthorized(RequestError):
    """A bearer token is missing or wrong."""

    status = 401
    type = "authentication_error"


class Forbidden(RequestError):
    """The route is not open on this listener."""

    status = 403
    type = "permission_error"


class NotFound(RequestError):
    """No such path, or no such model."""

    status = 404
    type = "not_found_error"


class MethodNotAllowed(RequestError):
    """The path exists and does not take this method; the answer carries Allow."""

    status = 405


class RequestTimeout(RequestError):
    """Head and body were not complete within --request-timeout-secs."""

    status = 408
    type = "timeout_error"


class LengthRequired(RequestError):
    """A POST without Content-Length, or with Transfer-Encoding."""

    status = 411


class ContentTooLarge(RequestError):
    """Content-Length is over the route's cap."""

    status = 413


class UnsupportedMediaType(RequestError):
    """Content-Type is not application/json."""

    status = 415


class MisdirectedRequest(RequestError):
    """Host does not name this listener."""

    status = 421


class TooManyRequests(RequestError):
    """The rate limit is spent, or there is no admission or receiving place."""

    status = 429
    type = "rate_limit_error"


class HeadersTooLarge(RequestError):
    """Request line and header fields are over 64 KiB."""

    status = 431


class Overloaded(RequestError):
    """The engine did not open the request in time, or the connection cap is reached."""

    status = 503
    type = "overloaded_error"


class Draining(RequestError):
    """The server is shutting down and takes no new request."""

    status = 503
    type = "overloaded_error"
    default_code = "draining"


class EngineError(RequestError):
    """Our own failure while serving a request. The message says that, and no more."""

    status = 500
    type = "server_error"
