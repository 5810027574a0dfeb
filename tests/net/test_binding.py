"""Addresses to listening sockets, and every way in which that is refused."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from poot.config import Address, FdAddress, TcpAddress, UnixAddress
from poot.errors import StartupError
from poot.net.binding import bind, release
from tests.net.peers import LOOPBACK

pytestmark = pytest.mark.anyio


async def test_a_tcp_listener_reports_the_port_the_kernel_chose() -> None:
    binding = await bind(LOOPBACK)
    with release(binding):
        assert isinstance(binding.address, TcpAddress)
        assert binding.address.port == binding.listening.getsockname()[1] != 0
        assert (binding.local_host, binding.local_port) == ("127.0.0.1", binding.address.port)
        assert binding.listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            assert binding.listening.getsockopt(socket.SOL_SOCKET, option)
    assert binding.listening.fileno() == -1


async def test_two_listeners_share_a_port() -> None:
    first = await bind(LOOPBACK)
    with release(first):
        second = await bind(first.address)
        with release(second):
            assert second.address == first.address


async def test_a_port_held_by_someone_else_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StartupError, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"):
            await bind(TcpAddress(host="127.0.0.1", port=port))


async def test_an_address_of_another_machine_is_refused() -> None:
    # 192.0.2.0/24 is for documentation (RFC 5737): no machine has it.
    with pytest.raises(StartupError, match=r"cannot listen on 192\.0\.2\.1:0: Cannot assign"):
        await bind(TcpAddress(host="192.0.2.1", port=0))


async def test_a_name_is_resolved() -> None:
    binding = await bind(TcpAddress(host="localhost", port=0))
    with release(binding):
        assert binding.local_host == "localhost"
        assert binding.listening.getsockname()[0] == "127.0.0.1"


async def test_an_ipv6_wildcard_takes_ipv4_clients_as_what_they_are() -> None:
    try:
        binding = await bind(TcpAddress(host="::", port=0))
    except StartupError:
        pytest.skip("this machine has no IPv6")
    with release(binding):
        assert isinstance(binding.address, TcpAddress)
        with socket.create_connection(("127.0.0.1", binding.address.port)):
            binding.listening.setblocking(True)
            accepted, peer = binding.listening.accept()
            accepted.close()
            assert binding.endpoints(peer).peer_ip == "127.0.0.1"


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("2001:db8::1", 5, 0, 0), "2001:db8::1"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (("::ffff:0:1", 5, 0, 0), "::ffff:0:1"),
        ("", "unix"),
    ],
)
async def test_the_peers_address_is_one_key_for_one_client(peer: object, expected: str) -> None:
    binding = await bind(LOOPBACK)
    with release(binding):
        assert binding.endpoints(peer).peer_ip == expected


async def test_a_unix_socket_is_bound_and_its_file_removed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    binding = await bind(UnixAddress(path=str(path)))
    with release(binding):
        assert path.is_socket()
        assert (binding.local_host, binding.local_port) == (None, None)
    assert not path.exists()


async def test_a_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
        left_behind.listen()
    assert path.is_socket()
    binding = await bind(UnixAddress(path=str(path)))
    with release(binding), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


@pytest.mark.parametrize("backlog", [8, 0])
async def test_a_unix_socket_somebody_listens_on_is_refused_and_left_alone(tmp_path: Path, backlog: int) -> None:
    path = str(tmp_path / "socket")
    waiting: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen(backlog)
        for _ in range(backlog == 0 and 8):  # fill the queue: the probe must not wait for room in it
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            client.connect_ex(path)
            waiting.append(client)
        with pytest.raises(StartupError, match="another process listens there"):
            await bind(UnixAddress(path=path))
        assert os.access(path, os.F_OK)
        for client in waiting:
            client.close()


async def test_a_file_that_is_no_socket_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(StartupError, match="a file that is no socket is there"):
        await bind(UnixAddress(path=str(path)))
    assert path.read_text() == "precious"


@pytest.mark.parametrize("path", ["/nonexistent/directory/socket", "/tmp/" + "x" * 200])
async def test_a_path_that_cannot_be_bound_is_refused(path: str) -> None:
    with pytest.raises(StartupError, match="cannot listen on unix:/"):
        await bind(UnixAddress(path=path))


async def test_a_socket_file_that_was_replaced_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    binding = await bind(UnixAddress(path=str(path)))
    with release(binding):
        path.unlink()
        path.write_text("someone else's")
    assert path.exists()


async def test_an_inherited_tcp_socket_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as inherited:
        port = inherited.getsockname()[1]
        binding = await bind(FdAddress(fd=os.dup(inherited.fileno())))
        with release(binding):
            assert binding.address == TcpAddress(host="127.0.0.1", port=port)
            assert (binding.local_host, binding.local_port) == ("127.0.0.1", port)
            assert binding.listening.gettimeout() == 0


async def test_an_inherited_unix_socket_is_taken(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as inherited:
        inherited.bind(path)
        inherited.listen()
        binding = await bind(FdAddress(fd=os.dup(inherited.fileno())))
        with release(binding):
            assert (binding.address, binding.local_host) == (UnixAddress(path=path), None)


async def refusal(address: Address) -> str:
    with pytest.raises(StartupError) as caught:
        await bind(address)
    return str(caught.value)


async def test_a_descriptor_that_is_no_listening_socket_is_refused_and_left_open(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    first, second = socket.socketpair()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams, socket.socket() as unbound, first, second:
        for descriptor, reason in [
            (reading, "no open socket"),
            (datagrams.fileno(), "no TCP or Unix stream socket"),
            (unbound.fileno(), "does not listen"),
            (first.fileno(), "does not listen"),
        ]:
            assert f"cannot listen on fd://{descriptor}: it is" in (message := await refusal(FdAddress(fd=descriptor)))
            assert reason in message
            os.fstat(descriptor)
    os.close(reading)
    os.close(writing)
    assert "no open socket" in await refusal(FdAddress(fd=reading))
