"""Layered link: the common part of TLS and WebSocket, which run on top of a stream link.

Carries the layer's bytes to the stream link, as far as it takes them. Does not know their content.
"""

from __future__ import annotations

import threading
from abc import abstractmethod

from zenlake.errors import LinkError
from zenlake.link.base import Progress, TransportLink

UNSENT_BYTES = 256 * 1024  # Bytes waiting for the stream above which send() takes nothing.
MAX_UNSENT_BYTES = 2 * UNSENT_BYTES  # Above this the link fails: the peer does not read answers.
MAX_TEXT_CHARACTERS = 200  # Characters of a peer's text that an error shows.


class LayeredLink(TransportLink):
    """Link on top of a stream link. A lock admits one thread at a time to the layer."""

    def __init__(self, stream: TransportLink) -> None:
        self._stream = stream
        self.local, self.remote, self.address = stream.local, stream.remote, stream.address
        self._lock = threading.Lock()
        self._connected = False
        self._unsent = bytearray()

    @abstractmethod
    def _step(self) -> bool:
        """Continue the layer's own handshake with received bytes; return whether it is complete."""

    @abstractmethod
    def _take_written(self) -> bytes:
        """Return the bytes that the layer has written since the last call."""

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
        """Send the layer's bytes on the stream, as far as it takes them."""
        self._unsent += self._take_written()
        while self._unsent:
            taken = self._stream.send(self._unsent)
            if not taken:
                break
            del self._unsent[:taken]
        if len(self._unsent) > MAX_UNSENT_BYTES:
            raise LinkError(f"{self.remote}: it keeps asking for answers and does not read them")


def clean(text: str) -> str:
    """Return a peer's text, shortened and printable, for a log line."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_TEXT_CHARACTERS])
