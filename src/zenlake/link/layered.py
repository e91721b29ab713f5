"""A link on top of another one: what TLS and WebSocket have in common.

Knows the stream link below and carries bytes to it, as far as it takes them. Does not know what
the layer writes.
"""

from __future__ import annotations

import threading
from abc import abstractmethod

from zenlake.errors import LinkError
from zenlake.link.base import Progress, TransportLink

UNSENT_BYTES = 256 * 1024  # that may wait for the stream; beyond, send() takes nothing
MAX_UNSENT_BYTES = 2 * UNSENT_BYTES  # beyond: a peer that makes us answer and does not read


class LayeredLink(TransportLink):
    """One thread at a time is inside the layer."""

    def __init__(self, stream: TransportLink) -> None:
        self._stream = stream
        self.local, self.remote, self.address = stream.local, stream.remote, stream.address
        self._lock = threading.Lock()
        self._connected = False
        self._unsent = bytearray()

    @abstractmethod
    def _step(self) -> bool:
        """One step of the layer's own handshake, with what has arrived; whether it is over."""

    @abstractmethod
    def _written(self) -> bytes:
        """What the layer has written since this was asked last."""

    def fileno(self) -> int:
        return self._stream.fileno()

    def handshake(self) -> Progress:
        with self._lock:
            if not self._connected:
                progress = self._stream.handshake()
                if progress is not Progress.DONE:
                    return progress
                self._connected = True
            done = self._step()
            self._carry()
            if self._unsent:
                return Progress.WANT_WRITE
            return Progress.DONE if done else Progress.WANT_READ

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def flush(self) -> None:
        with self._lock:
            self._carry()

    def _carry(self) -> None:
        """What the layer wrote, to the stream as far as it takes it."""
        self._unsent += self._written()
        while self._unsent:
            taken = self._stream.send(self._unsent)
            if not taken:
                break
            del self._unsent[:taken]
        if len(self._unsent) > MAX_UNSENT_BYTES:
            raise LinkError(f"{self.remote}: it keeps asking for answers and does not read them")
