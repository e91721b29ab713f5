"""WebSocket links: one binary message is one batch.

The library `websockets` does the upgrade and the frames in memory; its bytes go through a stream
link, whose sockets this module does not know.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from contextlib import suppress
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import WebSocketURI

from zenlake.errors import LinkError
from zenlake.link import tcp
from zenlake.link.base import TransportLink
from zenlake.link.layered import UNSENT_BYTES, LayeredLink, clean
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import Address, StreamListener, listener_locators, listening_socket
from zenlake.link.tcp import TcpLink
from zenlake.wire.framing import MAX_BATCH_BYTES, Framing
from zenlake.wire.locator import EndPoint

PATH = "/"

LOG = logging.getLogger(__name__)
DATA = {Opcode.BINARY, Opcode.CONT}


class WsLink(LayeredLink):
    """WebSocket on top of a stream link."""

    protocol = "ws"
    framing = Framing.DATAGRAM
    reliable = True
    mtu = MAX_BATCH_BYTES

    def __init__(self, stream: TransportLink, side: ClientProtocol | ServerProtocol) -> None:
        super().__init__(stream)
        self._side = side
        self._message = bytearray()  # Fragments of the current message.
        self._batches: deque[bytes] = deque()  # Messages of one read of the stream.
        self._ended = False
        self._broken: LinkError | None = None
        if isinstance(side, ClientProtocol):
            side.send_request(side.connect())

    def _step(self) -> bool:
        if self._side.state is State.CONNECTING:
            self._upgrade()
        return self._side.state is not State.CONNECTING

    def _upgrade(self) -> None:
        """Continue the HTTP upgrade with received bytes."""
        data = self._stream.receive()
        if data:
            self._side.receive_data(data)
            self._take_events()
        elif data == b"":
            self._side.receive_eof()  # The end of the stream may end an HTTP response.
        refused = self._side.handshake_exc
        if data == b"" and not isinstance(refused, InvalidStatus):
            raise LinkError(f"{self.remote}: it closed the link during the WebSocket upgrade")
        if refused is not None:
            with suppress(LinkError):
                self._carry()  # The HTTP response that tells the peer the reason.
            raise LinkError(f"{self.remote}: WebSocket upgrade failed: {clean(str(refused))}")

    def receive(self) -> bytes | None:
        with self._lock:
            if not self._batches and not self._finished():
                self._read()
            if self._batches:
                return self._batches.popleft()
            if self._broken is not None:
                raise self._broken
            return b"" if self._ended else None

    def _finished(self) -> bool:
        return self._ended or self._broken is not None

    def _read(self) -> None:
        try:
            data = self._stream.receive()
            if data:
                self._side.receive_data(data)
                self._take_events()
            elif data == b"":
                self._ended = True
            self._carry()  # Pongs, and the answer to a close.
        except LinkError as error:
            if not self._finished():  # After the end an unsent answer does not matter.
                self._broken = error

    def _take_events(self) -> None:
        for event in self._side.events_received():
            if isinstance(event, Frame):
                self._take_frame(event)
            elif isinstance(event, Request):
                self._answer(event)
        error = self._side.parser_exc
        if error is not None and not self._finished():
            self._broken = LinkError(f"{self.remote}: not WebSocket as it should be: {error}")

    def _answer(self, request: Request) -> None:
        """Accept or refuse an upgrade."""
        assert isinstance(self._side, ServerProtocol)
        if self._side.close_expected():
            raise LinkError(f"{self.remote}: it sent more before its upgrade was answered")
        self._side.send_response(self._side.accept(request))

    def _take_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            self._ended = self._broken is None
        elif frame.opcode is Opcode.TEXT:
            self._broken = LinkError(f"{self.remote}: it sent text, and batches are binary")
            if self._side.state is State.OPEN:
                self._side.fail(CloseCode.UNSUPPORTED_DATA, "batches are binary")
        elif frame.opcode in DATA and not self._finished():
            self._message += frame.data
            if frame.fin:
                if self._message:  # An empty message is not a batch, and b"" would mean the end.
                    self._batches.append(bytes(self._message))
                self._message.clear()

    @property
    def more(self) -> bool:
        return bool(self._batches) or self._finished()

    def send(self, data: bytes | bytearray | memoryview) -> int:
        size = len(data)
        if size > self.mtu:
            raise LinkError(f"{self.remote}: a batch of {size} bytes is larger than {self.mtu}")
        with self._lock:
            self._carry()
            if len(self._unsent) > UNSENT_BYTES:
                return 0
            if self._side.state is not State.OPEN:
                raise self._broken or LinkError(f"{self.remote}: the WebSocket is closed")
            self._side.send_binary(data)
            self._carry()
            return size

    def _take_written(self) -> bytes:
        return b"".join(self._side.data_to_send())  # An empty part announces the close.

    def close(self) -> None:
        with self._lock:
            if self._side.state is State.OPEN and self._stream.fileno() >= 0:
                self._side.send_close(CloseCode.NORMAL_CLOSURE)
                with suppress(LinkError):
                    self._carry()
            self._stream.close()


resolve = tcp.resolve


def connect(endpoint: EndPoint, address: Address, options: LinkOptions) -> WsLink:
    host, port = address.sockaddr[:2]  # The Host header has the address, as in Rust.
    uri = WebSocketURI(False, host.partition("%")[0], port, PATH, "")
    stream = tcp.connect(endpoint, address, options)
    return WsLink(stream, ClientProtocol(uri, max_size=MAX_BATCH_BYTES, logger=LOG))


def listen(endpoint: EndPoint, options: LinkOptions) -> StreamListener:
    def make_link(sock: socket.socket, peer: Any) -> WsLink:
        stream = TcpLink(endpoint.protocol, sock, peer)
        return WsLink(stream, ServerProtocol(max_size=MAX_BATCH_BYTES, logger=LOG))

    sock = listening_socket(endpoint)
    return StreamListener(sock, endpoint, listener_locators(endpoint, sock), make_link)
