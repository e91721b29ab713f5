"""Authentication: the interface of a mechanism, and the Auth extension of INIT and OPEN.

Knows the chain of nested extensions and the order of the four steps; each mechanism has a file of
its own. Does not know messages, clocks or randomness: random bytes are an argument.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import TypeVar

from zenlake.errors import AuthError, DecodeError
from zenlake.wire.cursor import ByteReader, encode
from zenlake.wire.extensions import (
    ENC_UNIT,
    ENC_Z64,
    ENC_ZBUF,
    FLAG_EXTENSIONS,
    ExtensionTable,
    Unknown,
    write_extensions,
)

Entropy = Callable[[int], bytes]
"Return this many bytes of cryptographic randomness."
Value = int | bytes | None
"Content of one nested extension: int for Z64, bytes for ZBuf, None for Unit."

ID_MASK = 0x0F
MAX_SECRET_FILE_BYTES = 16 * 1024 * 1024
PRINTED_BYTES = 64  # Bytes of a peer's name that a log line shows.
OTHERS_MAY_READ = 0o077  # Permission bits of the group and of all other users.

T = TypeVar("T", int, bytes, None)


class AuthOpener(ABC):
    """Opener's side of one mechanism in one handshake. AuthError: the peer's value is invalid."""

    @abstractmethod
    def init_syn(self) -> Value: ...

    @abstractmethod
    def open_syn(self, init_ack: Value) -> Value: ...

    @abstractmethod
    def open_ack(self, value: Value) -> None: ...


class AuthAcceptor(ABC):
    """Acceptor's side of one mechanism in one handshake. AuthError: the peer's value is invalid."""

    identity: str
    "Identity that the peer has proved, set when open_ack() returns."

    @abstractmethod
    def init_ack(self, init_syn: Value) -> Value: ...

    @abstractmethod
    def open_ack(self, open_syn: Value) -> Value: ...


class Authenticator(ABC):
    """One mechanism with this node's credentials, and the credentials that it accepts."""

    ext_id: int
    "Id of the nested extension, 1 to 15: 1 public key, 2 user and password."
    name: str

    @abstractmethod
    def opener(self, entropy: Entropy) -> AuthOpener | None:
        """Return the opener's side of a handshake; None: this node has no credentials."""

    @abstractmethod
    def acceptor(self, entropy: Entropy) -> AuthAcceptor | None:
        """Return the acceptor's side of a handshake; None: peers need no credentials."""


class _HandshakeSteps:
    """Order of steps: each may be taken once, also if it fails."""

    def __init__(self, *order: str) -> None:
        self._left = list(order)

    def take(self, step: str) -> None:
        if not self._left or self._left[0] != step:
            raise AuthError(f"authentication: {step} is out of turn; connect again")
        del self._left[0]


class OpenerAuth:
    """All mechanisms of one handshake, opener's side. None: the Auth extension is absent.

    The peer has to answer each mechanism that was offered, as the Rust opener demands: a node with
    credentials does not talk to one that ignores them.
    """

    def __init__(self, authenticators: Iterable[Authenticator], entropy: Entropy) -> None:
        self._openers = {
            (a.ext_id, a.name): opener
            for a in _sort(authenticators)
            if (opener := a.opener(entropy)) is not None
        }
        self._steps = _HandshakeSteps("InitSyn", "OpenSyn", "OpenAck")

    def init_syn(self) -> bytes | None:
        self._steps.take("InitSyn")
        return write_chain({i: opener.init_syn() for (i, _), opener in self._openers.items()})

    def open_syn(self, init_ack: bytes | None) -> bytes | None:
        self._steps.take("OpenSyn")
        values = self._answers(init_ack, "InitAck")
        return write_chain({i: o.open_syn(values[i]) for (i, _), o in self._openers.items()})

    def open_ack(self, value: bytes | None) -> None:
        self._steps.take("OpenAck")
        values = self._answers(value, "OpenAck")
        for (i, _), opener in self._openers.items():
            opener.open_ack(values[i])

    def _answers(self, data: bytes | None, step: str) -> dict[int, Value]:
        values = read_chain(data, step)
        for i, name in self._openers:
            if i not in values:
                raise AuthError(
                    f"{step}: the peer does not answer {name} authentication; "
                    f"configure it there, or connect without it"
                )
        return values


class AcceptorAuth:
    """All mechanisms of one handshake, acceptor's side. None: the Auth extension is absent.

    The peer has to pass every mechanism that has an acceptor; any other is ignored.
    """

    def __init__(self, authenticators: Iterable[Authenticator], entropy: Entropy) -> None:
        self._acceptors = {
            (a.ext_id, a.name): acceptor
            for a in _sort(authenticators)
            if (acceptor := a.acceptor(entropy)) is not None
        }
        self._steps = _HandshakeSteps("InitAck", "OpenAck")
        self.identities: dict[str, str] = {}
        "Proved identities of the peer, by mechanism; empty until open_ack() returns."

    def init_ack(self, init_syn: bytes | None) -> bytes | None:
        self._steps.take("InitAck")
        values = self._required(init_syn, "InitSyn")
        return write_chain({i: a.init_ack(values[i]) for (i, _), a in self._acceptors.items()})

    def open_ack(self, open_syn: bytes | None) -> bytes | None:
        self._steps.take("OpenAck")
        values = self._required(open_syn, "OpenSyn")
        out = write_chain({i: a.open_ack(values[i]) for (i, _), a in self._acceptors.items()})
        self.identities = {name: a.identity for (_, name), a in self._acceptors.items()}
        return out

    def _required(self, data: bytes | None, step: str) -> dict[int, Value]:
        values = read_chain(data, step)
        for i, name in self._acceptors:
            if i not in values:
                raise AuthError(f"{step}: {name} authentication is required; the peer shows none")
        return values


def _sort(authenticators: Iterable[Authenticator]) -> list[Authenticator]:
    """Return the mechanisms by id, the order on the wire."""
    ordered = sorted(authenticators, key=lambda a: a.ext_id)
    ids = [a.ext_id for a in ordered]
    if len(set(ids)) != len(ids) or any(not 0 < i <= ID_MASK for i in ids):
        raise AuthError(f"authentication: ids {ids} have to be 1 to {ID_MASK}, each once")
    return ordered


@dataclass(slots=True)
class _Chain:
    extensions: tuple[Unknown, ...] = ()


_NO_ROWS = ExtensionTable("AUTH")  # The mechanisms, not this table, know the ids.
_ENCODING_OF = {int: ENC_Z64, bytes: ENC_ZBUF, NoneType: ENC_UNIT}


def read_chain(data: bytes | None, step: str) -> dict[int, Value]:
    """Decode the nested extensions, by id."""
    chain = _Chain()
    if data:
        with refusing(f"{step}: the Auth extension"):
            reader = ByteReader(data)
            _NO_ROWS.read(reader, FLAG_EXTENSIONS, chain)
            reader.finish("extension")
    values = {extension.header & ID_MASK: extension.value for extension in chain.extensions}
    if len(values) != len(chain.extensions):
        raise AuthError(f"{step}: the Auth extension holds the same mechanism twice")
    return values


def write_chain(values: dict[int, Value]) -> bytes | None:
    """Encode the nested extensions; None if there are none."""
    if not values:
        return None
    chain = [Unknown(i | _ENCODING_OF[type(value)], value) for i, value in values.items()]
    return encode(write_extensions, [], tuple(chain))


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn a DecodeError of the peer's bytes into an AuthError."""
    try:
        yield
    except DecodeError as error:
        raise AuthError(f"{what} cannot be read: {error}") from None


_KINDS = {int: "a number", bytes: "bytes", NoneType: "nothing"}


def expect(value: Value, kind: type[T], what: str) -> T:
    """Return `value` if it is of this kind, else raise AuthError."""
    if not isinstance(value, kind):
        raise AuthError(f"{what}: the peer sent {_KINDS[type(value)]} instead of {_KINDS[kind]}")
    return value


def printable(raw: bytes) -> str:
    """Return a peer's bytes as a short text that is safe to log."""
    return repr(raw[:PRINTED_BYTES].decode(errors="replace"))


def is_exposed(path: Path) -> bool:
    """Return whether users other than the owner have any access to a file with secrets."""
    return bool(path.stat().st_mode & OTHERS_MAY_READ)


def read_secret(path: Path, *, strict: bool = False) -> str:
    """Return the text of a file with secrets. `strict`: refuse it if `is_exposed`."""
    try:
        if strict and is_exposed(path):
            raise AuthError(f"{path}: others may read this file; chmod 600 it")
        with path.open("rb") as file:
            data = file.read(MAX_SECRET_FILE_BYTES + 1)
    except OSError as error:
        raise AuthError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_SECRET_FILE_BYTES:
        raise AuthError(
            f"{path} has more than {MAX_SECRET_FILE_BYTES} bytes: it is not a file of secrets"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise AuthError(f"{path}: byte {error.start} is not UTF-8") from None
