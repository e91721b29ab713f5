"""What an authentication mechanism is, and the Auth extension of INIT and OPEN that carries them.

Knows the nested chain and the order of the four steps; each mechanism has a file of its own.
Does not know messages, clocks or chance: random bytes come from outside.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import TypeVar

from zenlake.errors import AuthError, DecodeError
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.extensions import (
    ENC_UNIT,
    ENC_Z64,
    ENC_ZBUF,
    ExtensionTable,
    Unknown,
    read_extensions,
    write_extensions,
)

Entropy = Callable[[int], bytes]
"This many bytes that nobody can guess."
Value = int | bytes | None
"Of one nested extension: Z64, ZBuf, Unit."

ID_MASK = 0x0F
MAX_SECRET_FILE_BYTES = 16 * 1024 * 1024
PRINTED_BYTES = 64  # of what a peer calls itself
OTHERS_MAY_READ = 0o077  # any right of the group or of everybody

T = TypeVar("T", int, bytes, None)


class AuthOpener(ABC):
    """One handshake, dialling side. Whatever the peer sent that is no good: AuthError."""

    @abstractmethod
    def init_syn(self) -> Value: ...

    @abstractmethod
    def open_syn(self, init_ack: Value) -> Value: ...

    @abstractmethod
    def open_ack(self, value: Value) -> None: ...


class AuthAcceptor(ABC):
    """One handshake, accepting side. Whatever the peer sent that is no good: AuthError."""

    identity: str
    "Who it was, once open_ack() returned."

    @abstractmethod
    def init_ack(self, init_syn: Value) -> Value: ...

    @abstractmethod
    def open_ack(self, open_syn: Value) -> Value: ...


class Authenticator(ABC):
    """One mechanism, with this node's credentials and what it knows of others'."""

    ext_id: int
    "Of its nested extension, 1 to 15: 1 public key, 2 user and password."
    name: str

    @abstractmethod
    def opener(self, entropy: Entropy) -> AuthOpener | None:
        """None: has no credentials to show."""

    @abstractmethod
    def acceptor(self, entropy: Entropy) -> AuthAcceptor | None:
        """None: requires nothing of peers."""


class _HandshakeSteps:
    """Each step of a handshake is taken once and in order, also when it fails."""

    def __init__(self, *order: str) -> None:
        self._left = list(order)

    def take(self, step: str) -> None:
        if not self._left or self._left[0] != step:
            raise AuthError(f"authentication: {step} is out of turn; dial again")
        del self._left[0]


class OpenerAuth:
    """All mechanisms of one handshake, dialling side. None: the Auth extension is absent.

    Each mechanism that was offered has to be answered, as Zenoh's Rust opener demands: a node
    that shows credentials does not talk to one that does not look at them.
    """

    def __init__(self, authenticators: Iterable[Authenticator], entropy: Entropy) -> None:
        self._openers = {
            (a.ext_id, a.name): opener
            for a in _in_order(authenticators)
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
                    f"configure it there, or dial without it"
                )
        return values


class AcceptorAuth:
    """All mechanisms of one handshake, accepting side. None: the Auth extension is absent.

    The peer has to pass every mechanism that has an acceptor; others that it offers are ignored.
    """

    def __init__(self, authenticators: Iterable[Authenticator], entropy: Entropy) -> None:
        self._acceptors = {
            (a.ext_id, a.name): acceptor
            for a in _in_order(authenticators)
            if (acceptor := a.acceptor(entropy)) is not None
        }
        self._steps = _HandshakeSteps("InitAck", "OpenAck")
        self.identities: dict[str, str] = {}
        "Who the peer is, by mechanism; empty until open_ack() returned."

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


def _in_order(authenticators: Iterable[Authenticator]) -> list[Authenticator]:
    """By id, which is the order on the wire."""
    ordered = sorted(authenticators, key=lambda a: a.ext_id)
    ids = [a.ext_id for a in ordered]
    if len(set(ids)) != len(ids) or any(not 0 < i <= ID_MASK for i in ids):
        raise AuthError(f"authentication: ids {ids} have to be 1 to {ID_MASK}, each once")
    return ordered


@dataclass(slots=True)
class _Chain:
    extensions: tuple[Unknown, ...] = ()


_NO_ROWS = ExtensionTable("AUTH")  # which ids mean something is for the mechanisms to say
_ENCODING_OF = {int: ENC_Z64, bytes: ENC_ZBUF, NoneType: ENC_UNIT}


def read_chain(data: bytes | None, step: str) -> dict[int, Value]:
    """The nested extensions by id."""
    chain = _Chain()
    if data:
        with refusing(f"{step}: the Auth extension"):
            reader = ByteReader(data)
            read_extensions(reader, _NO_ROWS, chain)
            reader.finish("extension")
    values = {extension.header & ID_MASK: extension.value for extension in chain.extensions}
    if len(values) != len(chain.extensions):
        raise AuthError(f"{step}: the Auth extension holds the same mechanism twice")
    return values


def write_chain(values: dict[int, Value]) -> bytes | None:
    """The nested extensions as bytes; None if there are none."""
    if not values:
        return None
    w = ByteWriter()
    chain = [Unknown(i | _ENCODING_OF[type(value)], value) for i, value in values.items()]
    write_extensions(w, [], tuple(chain))
    return bytes(w.out)


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Bytes of a peer that do not decode are wrong credentials."""
    try:
        yield
    except DecodeError as error:
        raise AuthError(f"{what} cannot be read: {error}") from None


_KINDS = {int: "a number", bytes: "bytes", NoneType: "nothing"}


def expect(value: Value, kind: type[T], what: str) -> T:
    """`value`, which has to be of this kind."""
    if not isinstance(value, kind):
        raise AuthError(f"{what}: the peer sent {_KINDS[type(value)]} instead of {_KINDS[kind]}")
    return value


def printable(raw: bytes) -> str:
    """A peer's bytes as a short text that is safe to log."""
    return repr(raw[:PRINTED_BYTES].decode(errors="replace"))


def exposed(path: Path) -> bool:
    """Whether others than its owner may use this file: worth a warning where it holds secrets."""
    return bool(path.stat().st_mode & OTHERS_MAY_READ)


def read_secret(path: Path, *, strict: bool = False) -> str:
    """The text of a file with secrets. `strict`: refuse one that is `exposed`."""
    try:
        if strict and exposed(path):
            raise AuthError(f"{path}: others may read this file; chmod 600 it")
        with path.open("rb") as file:
            data = file.read(MAX_SECRET_FILE_BYTES + 1)
    except OSError as error:
        raise AuthError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_SECRET_FILE_BYTES:
        raise AuthError(f"{path} has more than {MAX_SECRET_FILE_BYTES} bytes: not such a file")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise AuthError(f"{path}: byte {error.start} is not UTF-8") from None
