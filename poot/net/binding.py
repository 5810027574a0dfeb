"""From an address on the command line to a listening socket: host:port, unix:PATH, fd://N."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from poot.config import Address, FdAddress, TcpAddress, UnixAddress
from poot.errors import StartupError
from poot.net.exchange import Endpoints

BACKLOG = 4096
"""Connections the kernel may queue before accept; it cuts this to net.core.somaxconn. nginx takes 511, uvicorn 2048."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """An open listening socket, non-blocking.

    Attributes:
        address: where it listens, with the port the kernel chose.
        local_host, local_port: see `poot.net.exchange.Endpoints`.
    """

    listening: socket.socket
    address: TcpAddress | UnixAddress
    local_host: str | None
    local_port: int | None

    def endpoints(self, peer: object) -> Endpoints:
        """Both ends of a connection accepted here; `peer` is what `accept` gave as its address."""
        return Endpoints(peer_ip=peer_ip(peer), local_host=self.local_host, local_port=self.local_port)


async def bind(address: Address) -> Binding:
    """Opens the listener of an address. The caller closes it through `release`.

    Raises:
        StartupError: the address cannot be listened on; the message names it and says why.
    """
    if isinstance(address, TcpAddress):
        return await _bind_tcp(address)
    if isinstance(address, UnixAddress):
        return _bind_unix(address)
    return _take_inherited(address)


@contextmanager
def release(binding: Binding) -> Iterator[None]:
    """Closes the listener on leaving, and removes the file of a Unix socket that is still the one bound here."""
    path = binding.address.path if isinstance(binding.address, UnixAddress) else None
    identity = _file_identity(path) if path else None
    try:
        yield
    finally:
        binding.listening.close()
        if path and identity is not None and _file_identity(path) == identity:
            os.unlink(path)


async def _bind_tcp(address: TcpAddress) -> Binding:
    shown = f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"
    try:
        family, sockaddr = await _resolve(address)
    except OSError as error:
        raise StartupError(f"cannot listen on {shown}: {error.strerror or error}") from error
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # So that a new process can start on the same address while this one drains.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # [::] takes IPv4 clients too, whatever the system's default is.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind(sockaddr)
        return _listen(listening, local_host=address.host)
    except OSError as error:
        listening.close()
        raise StartupError(f"cannot listen on {shown}: {error.strerror or error}") from error


async def _resolve(address: TcpAddress) -> tuple[socket.AddressFamily, Any]:
    """Family and socket address to bind. A name with addresses of both families gets its IPv4 one: all clients try it.

    Raises:
        OSError: the name has no address.
    """
    try:
        # An IP address is read without a look-up, so this does not wait.
        flags = socket.AI_NUMERICHOST | socket.AI_PASSIVE
        numeric = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
        return numeric[0][0], numeric[0][4]
    except socket.gaierror:
        named = await anyio.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return min(((each[0], each[4]) for each in named), key=lambda found: found[0] is not socket.AF_INET)


def _bind_unix(address: UnixAddress) -> Binding:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(address.path)
        listening.bind(address.path)
        return _listen(listening, local_host=None)
    except OSError as error:
        listening.close()
        raise StartupError(f"cannot listen on unix:{address.path}: {error.strerror or error}") from error
    except StartupError:
        listening.close()
        raise


def _remove_stale(path: str) -> None:
    """Removes a socket file that nobody listens on; leaves everything else alone.

    Raises:
        StartupError: something else is there, or somebody listens.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartupError(f"cannot listen on unix:{path}: a file that is no socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # Without waiting: a full backlog answers EAGAIN, and that somebody listens is all there is to know.
        probe.setblocking(False)
        if probe.connect_ex(path) != errno.ECONNREFUSED:
            raise StartupError(f"cannot listen on unix:{path}: another process listens there")
    os.unlink(path)


def _take_inherited(address: FdAddress) -> Binding:
    shown = f"fd://{address.fd}"
    try:
        inherited = socket.socket(fileno=address.fd)
    except OSError as error:
        raise StartupError(f"cannot listen on {shown}: it is no open socket ({error.strerror or error})") from error
    problem = None
    if inherited.type != socket.SOCK_STREAM or inherited.family not in (
        socket.AF_INET,
        socket.AF_INET6,
        socket.AF_UNIX,
    ):
        problem = "it is no TCP or Unix stream socket"
    elif not inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        problem = "it is a socket that does not listen"
    if problem is not None:
        inherited.detach()  # not ours to close
        raise StartupError(f"cannot listen on {shown}: {problem}")
    inherited.setblocking(False)
    return _describe(inherited, local_host=None)


def _listen(listening: socket.socket, *, local_host: str | None) -> Binding:
    listening.setblocking(False)
    listening.listen(BACKLOG)
    return _describe(listening, local_host=local_host)


def _describe(listening: socket.socket, *, local_host: str | None) -> Binding:
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        path = name if isinstance(name, str) else ""  # bytes: a Linux abstract socket, which has no file
        return Binding(listening=listening, address=UnixAddress(path=path), local_host=None, local_port=None)
    host = local_host if local_host is not None else name[0]
    return Binding(
        listening=listening, address=TcpAddress(host=host, port=name[1]), local_host=host, local_port=name[1]
    )


def peer_ip(peer: object) -> str:
    """The IP address in a socket address as `accept` gives it, one spelling for each client; "unix" without one."""
    if not isinstance(peer, tuple):
        return "unix"
    ip = str(peer[0]).partition("%")[0]
    # A dual-stack listener shows IPv4 peers as ::ffff:a.b.c.d; one client is one key however it was let in.
    return ip.removeprefix("::ffff:") if "." in ip else ip


def _file_identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
