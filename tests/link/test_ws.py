"""WebSocket links on loopback: messages as batches, and peers that do not behave.

The misbehaving peer is written frame by frame here, so that it can send what a library would not.
"""

import hashlib
import random
import select
import socket
import struct
import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.link_driver import (
    DEADLINE,
    INIT_SYN,
    TICK,
    EclipseNode,
    LinkStage,
    close_for_good,
    close_while_read,
    free_port,
    receive,
    reset,
    run_at_once,
    shake_hands,
)
from zenlake.errors import LinkError
from zenlake.link import ws
from zenlake.link.base import READ_BYTES, Listener, Progress, TransportLink
from zenlake.link.layered import MAX_UNSENT_BYTES, UNSENT_BYTES
from zenlake.link.options import LinkOptions
from zenlake.link.ws import WsLink
from zenlake.wire.batch import read_batch
from zenlake.wire.framing import Framing
from zenlake.wire.init import Init
from zenlake.wire.locator import EndPoint

ANY_PORT = EndPoint("ws/127.0.0.1:0")
KEY, ACCEPT = "dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # RFC 6455, 1.3
UPGRADE = (
    "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n"
)
CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FIN = 0x80


# --- driving links


class Stage(LinkStage[WsLink]):
    def __init__(self) -> None:
        super().__init__(WsLink)

    def listen(self, endpoint: EndPoint = ANY_PORT) -> Listener:
        return self.keep(ws.listen(endpoint, LinkOptions()))

    def connect(self, endpoint: str) -> WsLink:
        to = EndPoint(endpoint)
        return self.keep(ws.connect(to, ws.resolve(to)[0], LinkOptions()))

    def join(self, listener: Listener) -> tuple[WsLink, WsLink]:
        dialled, accepted = self.connect(listener.locators[0]), self.accept(listener)
        assert shake_hands(dialled, accepted) == [None, None]
        return dialled, accepted

    def pair(self) -> tuple[WsLink, WsLink]:
        """Return a connecting and an accepted link, their handshakes done."""
        return self.join(self.listen())

    def raw_client(self) -> tuple[socket.socket, WsLink]:
        """A plain connection that has been upgraded, and the link that sees it."""
        listener = self.listen()
        raw = self.raw(listener)
        raw.sendall(f"{UPGRADE}\r\n".encode())
        accepted = self.accept(listener)
        assert shake_hands(accepted) == [None]
        assert f"Sec-WebSocket-Accept: {ACCEPT}\r\n" in head(raw)
        return raw, accepted

    def raw_server(self) -> tuple[socket.socket, WsLink]:
        """Return the plain end of a connecting link, before the first byte."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            dialled = self.connect(f"ws/127.0.0.1:{server.getsockname()[1]}")
            server.settimeout(DEADLINE)
            raw, _ = server.accept()
        raw.settimeout(DEADLINE)
        self.keep(raw)
        return raw, dialled


@pytest.fixture
def stage() -> Iterator[Stage]:
    opened = Stage()
    yield opened
    opened.close()


def send(link: TransportLink, batch: bytes | bytearray | memoryview) -> None:
    end = time.monotonic() + DEADLINE
    while not link.send(batch):
        assert time.monotonic() < end, "it takes nothing"
        select.select([], [link], [], TICK)


def flush(link: TransportLink) -> None:
    end = time.monotonic() + DEADLINE
    while link.unsent:
        assert time.monotonic() < end, "it takes nothing"
        select.select([], [link], [], TICK)
        link.flush()


def head(raw: socket.socket) -> str:
    """An HTTP head, to its empty line."""
    got = b""
    while not got.endswith(b"\r\n\r\n"):
        byte = raw.recv(1)
        assert byte, got
        got += byte
    return got.decode()


def frame(opcode: int, data: bytes = b"", *, first: int = FIN, masked: bool = True) -> bytes:
    """One WebSocket frame; the mask is of zeros, so that bytes are seen as they are."""
    mask = FIN if masked else 0
    if len(data) < 126:
        size = bytes([mask | len(data)])
    elif len(data) < 65_536:
        size = bytes([mask | 126]) + struct.pack("!H", len(data))
    else:
        size = bytes([mask | 127]) + struct.pack("!Q", len(data))
    return bytes([first | opcode]) + size + (bytes(4) if masked else b"") + data


def still_serves(stage: Stage, listener: Listener) -> bool:
    dialled, accepted = stage.join(listener)
    send(dialled, b"x")
    return receive(accepted) == b"x"


# --- a link that is as it should be


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_batches_go_both_ways(stage: Stage, host: str) -> None:
    listener = stage.listen(EndPoint(f"ws/{host}:0"))
    dialled, accepted = stage.join(listener)
    for link in (dialled, accepted):
        assert (link.protocol, link.framing, link.reliable) == ("ws", Framing.DATAGRAM, True)
        assert link.mtu == 65_535
        assert link.address in ("127.0.0.1", "::1")
        assert (link.more, link.unsent, link.receive()) == (False, False, None)
    assert (dialled.local, dialled.remote) == (accepted.remote, accepted.local)
    assert dialled.remote in listener.locators
    assert repr(dialled) == f"<WsLink {dialled.local} -> {dialled.remote}>"
    send(dialled, b"to the one that accepted")
    assert receive(accepted) == b"to the one that accepted"
    send(accepted, b"and back")
    assert receive(dialled) == b"and back"


def test_one_send_is_one_batch_whatever_its_size(stage: Stage) -> None:
    dialled, accepted = stage.pair()
    sizes = [1, 2, 125, 126, 127, 1000, 65_534, 65_535]
    for sender, receiver in ((dialled, accepted), (accepted, dialled)):
        for kind in (bytes, bytearray, memoryview):
            for size in sizes:
                send(sender, kind(random.Random(size).randbytes(size)))
            assert [len(receive(receiver)) for _ in sizes] == sizes
        assert receiver.receive() is None


def test_a_batch_above_the_mtu_is_an_error_and_the_link_lives(stage: Stage) -> None:
    dialled, accepted = stage.pair()
    with pytest.raises(LinkError, match="a batch of 65536 bytes is larger than 65535"):
        dialled.send(bytes(65_536))
    send(dialled, b"small")
    assert receive(accepted) == b"small"


def test_batches_that_came_together_are_announced(stage: Stage) -> None:
    raw, accepted = stage.raw_client()
    raw.sendall(b"".join(frame(BINARY, bytes([i])) for i in range(5)))
    assert receive(accepted) == b"\0"
    got = [b"\0"]
    while accepted.more or len(got) < 5:
        got.append(receive(accepted))
    assert got == [bytes([i]) for i in range(5)]
    assert (accepted.more, accepted.receive()) == (False, None)


def test_the_request_is_as_zenoh_sends_it(stage: Stage) -> None:
    raw, dialled = stage.raw_server()
    assert dialled.handshake() is Progress.WANT_READ
    request = head(raw).split("\r\n")
    host, port = raw.getsockname()
    assert request[0] == "GET / HTTP/1.1"
    assert f"Host: {host}:{port}" in request
    named = {line.partition(":")[0].lower() for line in request[1:]}
    assert not named & {"sec-websocket-extensions", "sec-websocket-protocol", "origin"}


def test_an_upgrade_that_comes_byte_by_byte(stage: Stage) -> None:
    listener = stage.listen()
    raw = stage.raw(listener)
    accepted = stage.accept(listener)
    request = f"{UPGRADE}\r\n".encode()
    for i in range(len(request)):
        assert accepted.handshake() is Progress.WANT_READ
        raw.sendall(request[i : i + 1])
    assert shake_hands(accepted) == [None]
    assert head(raw).startswith("HTTP/1.1 101 ")


def test_a_batch_that_came_with_the_upgrade_is_announced(stage: Stage) -> None:
    listener = stage.listen()
    raw = stage.raw(listener)
    raw.sendall(f"{UPGRADE}\r\n".encode() + frame(BINARY, b"early"))
    accepted = stage.accept(listener)
    assert shake_hands(accepted) == [None]
    assert accepted.more or select.select([accepted], [], [], DEADLINE)[0]
    assert receive(accepted) == b"early"


def test_what_a_client_offers_beyond_plain_websocket_is_not_taken(stage: Stage) -> None:
    listener = stage.listen()
    raw = stage.raw(listener)
    offer = (
        "Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Protocol: zenoh, chat\r\n"
    )
    raw.sendall(f"{UPGRADE}{offer}\r\n".encode())
    accepted = stage.accept(listener)
    assert shake_hands(accepted) == [None]
    answer = head(raw).lower()
    assert answer.startswith("http/1.1 101 ")
    assert "extensions" not in answer
    assert "sec-websocket-protocol" not in answer


# --- frames


def test_fragments_are_joined_with_a_ping_between_them(stage: Stage) -> None:
    raw, accepted = stage.raw_client()
    raw.sendall(
        frame(BINARY, b"one ", first=0)
        + frame(CONT, b"two ", first=0)
        + frame(PING, b"still there?")
        + frame(CONT, b"three")
        + frame(BINARY, b"four")
    )
    assert receive(accepted) == b"one two three"
    assert receive(accepted) == b"four"
    assert raw.recv(64) == frame(PONG, b"still there?", masked=False)


def test_a_pong_that_nobody_asked_for_is_nothing(stage: Stage) -> None:
    raw, accepted = stage.raw_client()
    raw.sendall(frame(PONG, b"hm") + frame(BINARY, b"batch"))
    assert receive(accepted) == b"batch"


def test_an_empty_message_is_no_batch_and_not_the_end(stage: Stage) -> None:
    raw, accepted = stage.raw_client()
    raw.sendall(frame(BINARY) + frame(BINARY, first=0) + frame(CONT) + frame(BINARY, b"batch"))
    assert receive(accepted) == b"batch"


WRONG_FRAMES = {
    "text": (frame(TEXT, b"hello"), "it sent text, and batches are binary", 1003),
    "text in fragments": (frame(TEXT, b"he", first=0) + frame(CONT, b"llo"), "it sent text", 1003),
    "too large": (frame(BINARY, bytes(65_536)), "65536 bytes.*65535", 1009),
    "announced as huge": (
        bytes([FIN | BINARY, FIN | 127]) + b"\x7f" + b"\xff" * 7 + bytes(4),
        "bytes",
        1009,
    ),
    "a length above 63 bits": (
        bytes([FIN | BINARY, FIN | 127]) + b"\xff" * 8 + bytes(4),
        "bytes",
        1009,
    ),
    "too large in fragments": (
        frame(BINARY, bytes(40_000), first=0) + frame(CONT, bytes(25_536)),
        "bytes",
        1009,
    ),
    "not masked": (frame(BINARY, b"batch", masked=False), "incorrect masking", 1002),
    "reserved bits": (frame(BINARY, b"batch", first=FIN | 0x40), "reserved bits", 1002),
    "unknown opcode": (frame(5, b"batch"), "invalid opcode", 1002),
    "continues nothing": (frame(CONT, b"batch"), "unexpected continuation", 1002),
    "a new message too early": (
        frame(BINARY, b"a", first=0) + frame(BINARY, b"b"),
        "expected a continuation",
        1002,
    ),
    "a long ping": (frame(PING, bytes(126)), "control frame too long", 1002),
    "a ping in fragments": (frame(PING, b"p", first=0), "fragmented control frame", 1002),
    "close of one byte": (frame(CLOSE, b"\x03"), "close frame too short", 1002),
}


@pytest.mark.parametrize(
    ("data", "why", "code"), list(WRONG_FRAMES.values()), ids=list(WRONG_FRAMES)
)
def test_frames_that_break_the_link(stage: Stage, data: bytes, why: str, code: int) -> None:
    raw, accepted = stage.raw_client()
    raw.sendall(frame(BINARY, b"before") + data + frame(BINARY, b"after"))
    assert receive(accepted) == b"before"
    for _ in range(2):
        with pytest.raises(LinkError, match=f"^{accepted.remote}: .*{why}"):
            receive(accepted)
    with pytest.raises(LinkError):
        accepted.send(b"too late")
    first, size = raw.recv(1)[0], raw.recv(1)[0]
    assert first == FIN | CLOSE
    assert size >= 2
    assert struct.unpack("!H", raw.recv(2))[0] == code


def test_a_close_is_answered_and_is_the_end(stage: Stage) -> None:
    raw, accepted = stage.raw_client()
    bye = struct.pack("!H", 1000) + b"bye"
    raw.sendall(frame(BINARY, b"last") + frame(CLOSE, bye) + frame(BINARY, b"beyond"))
    assert receive(accepted) == b"last"
    assert accepted.more
    assert [receive(accepted), accepted.receive()] == [b"", b""]
    assert raw.recv(64) == frame(CLOSE, bye, masked=False)
    with pytest.raises(LinkError, match="the WebSocket is closed"):
        accepted.send(b"too late")


def test_a_close_that_cannot_be_answered_is_the_end_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(data: object) -> int:
        raise LinkError("the peer is gone")

    raw, accepted = stage.raw_client()
    monkeypatch.setattr(accepted._stream, "send", gone)
    raw.sendall(frame(CLOSE))
    assert [receive(accepted), accepted.receive()] == [b"", b""]


@pytest.mark.parametrize("rest", [b"", b"\x82", frame(BINARY, b"cut")[:-1]])
def test_the_end_without_a_close(stage: Stage, rest: bytes) -> None:
    raw, accepted = stage.raw_client()
    raw.sendall(frame(BINARY, b"last") + rest)
    raw.shutdown(socket.SHUT_WR)
    assert receive(accepted) == b"last"
    assert [receive(accepted), accepted.receive()] == [b"", b""]


def test_our_close_is_a_close_for_the_other_side(stage: Stage) -> None:
    for closing in (0, 1):
        links = stage.pair()
        send(links[closing], b"last")
        links[closing].close()
        assert receive(links[1 - closing]) == b"last"
        assert receive(links[1 - closing]) == b""


def test_a_reset_is_an_error(stage: Stage) -> None:
    raw, accepted = stage.raw_client()
    reset(raw)
    with pytest.raises(LinkError, match=f"^{accepted.remote}.*reset"):
        receive(accepted)


def test_a_closed_link_refuses_every_call(stage: Stage) -> None:
    dialled, _ = stage.pair()
    close_for_good(dialled)


def test_close_from_another_thread(stage: Stage) -> None:
    dialled, accepted = stage.pair()
    close_while_read(dialled)
    assert receive(accepted) == b""


# --- upgrades that fail


def without(header: str) -> str:
    lines = UPGRADE.split("\r\n")
    return "\r\n".join(line for line in lines if not line.startswith(header))


NOT_UPGRADES: dict[str, tuple[bytes, str, str]] = {
    "plain GET": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "Connection header", "426"),
    "POST": (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", "POST", "405"),
    "HTTP/1.0": (b"GET / HTTP/1.0\r\n\r\n", "HTTP/1.0", "505"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", ""),
    "no key": (f"{without('Sec-WebSocket-Key')}\r\n".encode(), "Sec-WebSocket-Key", "400"),
    "bad key": (f"{UPGRADE}\r\n".replace(KEY, "?").encode(), "Sec-WebSocket-Key", "400"),
    "old version": (
        f"{UPGRADE}\r\n".replace(": 13", ": 8").encode(),
        "Sec-WebSocket-Version",
        "400",
    ),
    "garbage": (b"\xff\x00\x1b[31m\r\n\r\n", "did not receive a valid HTTP request", ""),
    "random": (random.Random(5).randbytes(20_000), "", ""),
    "no end of line": (b"GET /" + b"a" * 20_000, "expected no more than 8192 bytes", "414"),
    "a long header": (
        f"{UPGRADE}X: {'x' * 9000}\r\n\r\n".encode(),
        "expected no more than 8192 bytes",
        "431",
    ),
    "many headers": (
        UPGRADE.encode() + b"X: x\r\n" * 200 + b"\r\n",
        "expected no more than 128 headers",
        "431",
    ),
    "a close right behind": (
        f"{UPGRADE}\r\n".encode() + frame(CLOSE, b"\x03\xe8"),
        "it sent more before its upgrade was answered",
        "",
    ),
    "a wrong frame right behind": (
        f"{UPGRADE}\r\n".encode() + frame(7),
        "it sent more before its upgrade was answered",
        "",
    ),
    "a wrong frame behind a wrong request": (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + frame(7),
        "it sent more before its upgrade was answered",
        "",
    ),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\n\x01\xfc\x03\x03\r\n", "valid HTTP request", ""),
    "nothing": (b"", "it closed the link during the WebSocket upgrade", ""),
    "a beginning": (b"GET / HT", "it closed the link during the WebSocket upgrade", ""),
}


@pytest.mark.parametrize(
    ("data", "why", "status"), list(NOT_UPGRADES.values()), ids=list(NOT_UPGRADES)
)
def test_what_is_no_upgrade_does_not_hurt_the_listener(
    stage: Stage, data: bytes, why: str, status: str
) -> None:
    listener = stage.listen()
    raw, error = stage.refused(listener, data)
    assert why in error
    assert error.isprintable()
    assert len(error) < 400
    if status:
        assert head(raw).startswith(f"HTTP/1.1 {status} ")
    assert still_serves(stage, listener)


def test_a_reset_during_the_upgrade_does_not_hurt_the_listener(stage: Stage) -> None:
    listener = stage.listen()
    raw = stage.raw(listener)
    raw.sendall(UPGRADE.encode())
    accepted = stage.accept(listener)
    reset(raw)
    (error,) = shake_hands(accepted)
    assert str(error).startswith(accepted.remote)
    assert still_serves(stage, listener)


ANSWERS = {
    "not found": ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "HTTP 404"),
    "a page without an end": ("HTTP/1.1 200 OK\r\n\r\n<html>", "HTTP 200"),
    "no HTTP": ("SSH-2.0-OpenSSH_9.2\r\n", "did not receive a valid HTTP response"),
    "a wrong key": (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {ACCEPT}\r\n\r\n",
        "Sec-WebSocket-Accept",
    ),
    "no key": (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        "Sec-WebSocket-Accept",
    ),
    "nothing": ("", "it closed the link during the WebSocket upgrade"),
}


@pytest.mark.parametrize(("answer", "why"), list(ANSWERS.values()), ids=list(ANSWERS))
def test_servers_that_do_not_upgrade(stage: Stage, answer: str, why: str) -> None:
    raw, dialled = stage.raw_server()
    assert dialled.handshake() is Progress.WANT_READ
    head(raw)
    raw.sendall(answer.encode())
    raw.shutdown(socket.SHUT_WR)
    (error,) = shake_hands(dialled)
    assert str(error).startswith(f"{dialled.remote}: ")
    assert why in str(error)


def test_a_port_where_nobody_listens(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    try:
        (error,) = shake_hands(stage.connect(f"ws/127.0.0.1:{port}"))
    except LinkError as at_once:
        error = at_once
    assert f"ws/127.0.0.1:{port}: connect: " in str(error)


# --- many bytes


def test_large_transfers_both_ways_at_once(stage: Stage) -> None:
    dialled, accepted = stage.pair()
    chance = random.Random(6)
    batches: dict[TransportLink, list[bytes]] = {
        link: [chance.randbytes(chance.randint(1, 65_535)) for _ in range(600)]
        for link in (dialled, accepted)
    }
    got: dict[TransportLink, list[bytes]] = {}

    def write(link: TransportLink) -> None:
        for batch in batches[link]:
            send(link, batch)
        flush(link)

    def read(link: TransportLink) -> None:
        got[link] = [hashlib.sha256(receive(link)).digest() for _ in range(600)]

    run_at_once(*(partial(work, link) for link in (dialled, accepted) for work in (write, read)))
    for sender, receiver in ((dialled, accepted), (accepted, dialled)):
        assert got[receiver] == [hashlib.sha256(each).digest() for each in batches[sender]]


def test_a_peer_that_does_not_read_is_felt(stage: Stage) -> None:
    dialled, accepted = stage.pair()
    batch = random.Random(7).randbytes(60_000)
    sent = 0
    while dialled.send(batch):
        sent += 1
        assert sent < 2000, "what the kernel holds has an end"
    assert dialled.unsent
    assert UNSENT_BYTES < len(dialled._unsent) <= UNSENT_BYTES + len(batch) + 16
    for _ in range(sent):
        assert receive(accepted) == batch
        dialled.flush()
    assert len(dialled._unsent) == 0
    assert dialled.send(batch) == len(batch)


def test_a_peer_that_pings_and_does_not_read_is_dropped(stage: Stage) -> None:
    raw, accepted = stage.raw_client()
    raw.setblocking(False)
    pings = frame(PING, b"p" * 125) * 500
    end = time.monotonic() + DEADLINE
    with pytest.raises(LinkError, match="it keeps asking for answers and does not read"):  # noqa: PT012
        while time.monotonic() < end:
            if select.select([], [raw], [], 0)[1]:
                pings = pings[raw.send(pings) :] or frame(PING, b"p" * 125) * 500
            assert accepted.receive() is None
    assert MAX_UNSENT_BYTES < len(accepted._unsent) <= MAX_UNSENT_BYTES + READ_BYTES


# --- with eclipse-zenoh


@pytest.mark.process
@pytest.mark.interop
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_our_init_is_answered_by_a_router(stage: Stage, host: str) -> None:
    endpoint = f"ws/{host}:{free_port()}"
    router = EclipseNode(stage, mode="router", listen__endpoints=[endpoint])
    assert router.said() == "open"
    dialled = stage.connect(endpoint)
    assert shake_hands(dialled) == [None]
    send(dialled, INIT_SYN)
    (ack,) = read_batch(receive(dialled))
    assert isinstance(ack, Init)
    assert ack.cookie
    assert ack.batch_size == 65_535


@pytest.mark.process
@pytest.mark.interop
def test_a_client_of_eclipse_zenoh_dials_our_listener(stage: Stage) -> None:
    listener = stage.listen()
    EclipseNode(stage, mode="client", connect__endpoints=[str(listener.locators[0])])
    accepted = stage.accept(listener)
    assert shake_hands(accepted) == [None]
    (syn,) = read_batch(receive(accepted))
    assert isinstance(syn, Init)
    assert syn.cookie is None
