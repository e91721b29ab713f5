"""User and password: the acceptor sends a nonce, the opener answers HMAC-SHA3-256(nonce, password).

Knows the proof and the dictionary. The proof is not bound to the link: without TLS an eavesdropper
can guess at the password, and an acceptor can relay the nonce of another node.
Rust: `io/zenoh-transport/src/unicast/establishment/ext/auth/usrpwd.rs`.
"""

import hmac
from collections.abc import Mapping
from pathlib import Path
from types import NoneType

from zenlake.errors import AuthError
from zenlake.transport.auth import (
    AuthAcceptor,
    Authenticator,
    AuthOpener,
    Entropy,
    Value,
    expect,
    printable,
    read_secret,
    refusing,
)
from zenlake.wire.cursor import ByteReader, ByteWriter

NAME = "user-password"
NONCE_BYTES = 8
MAX_USER_BYTES = 1024
MAX_PASSWORD_BYTES = 1024
MAX_USERS = 100_000
DECOY = b"the password of nobody"  # Compared for an unknown user, so that timing shows nothing.


class UserPassword(Authenticator):
    """Credentials for outgoing connections, and a dictionary for incoming ones.

    A node that connects here must be in the `dictionary`: an empty one refuses every node, None
    accepts every node.
    """

    ext_id = 2
    name = NAME

    def __init__(
        self,
        user: str | None = None,
        password: str | bytes | None = None,
        dictionary: Mapping[str, bytes] | None = None,
    ) -> None:
        if (user is None) != (password is None):
            raise AuthError(f"{NAME}: user and password belong together; give both or none")
        if user is None and dictionary is None:
            raise AuthError(f"{NAME}: give user and password, or a dictionary, or both")
        self._credentials: tuple[bytes, bytes] | None = None
        if user is not None and password is not None:
            self._credentials = _encode(user, password, NAME)
        self._dictionary: dict[bytes, bytes] | None = None
        if dictionary is not None:
            pairs = (_encode(u, p, f"{NAME}: dictionary") for u, p in dictionary.items())
            self._dictionary = dict(pairs)

    def opener(self, entropy: Entropy) -> AuthOpener | None:
        return None if self._credentials is None else _PasswordOpener(*self._credentials)

    def acceptor(self, entropy: Entropy) -> AuthAcceptor | None:
        return None if self._dictionary is None else _PasswordAcceptor(self._dictionary, entropy)

    def __repr__(self) -> str:
        shown = printable(self._credentials[0]) if self._credentials else None
        known = None if self._dictionary is None else len(self._dictionary)
        return f"UserPassword(user={shown}, users known={known})"


def prove(nonce: int, password: bytes) -> bytes:
    """Return the proof that the caller has the password."""
    return hmac.digest(nonce.to_bytes(NONCE_BYTES, "little"), password, "sha3_256")


class _PasswordOpener(AuthOpener):
    def __init__(self, user: bytes, password: bytes) -> None:
        self._user = user
        self._password = password

    def init_syn(self) -> Value:
        return None

    def open_syn(self, init_ack: Value) -> Value:
        nonce = expect(init_ack, int, f"{NAME}: InitAck")
        w = ByteWriter()
        w.block("user", self._user)
        w.block("hmac", prove(nonce, self._password))
        return bytes(w.out)

    def open_ack(self, value: Value) -> None:
        expect(value, NoneType, f"{NAME}: OpenAck")


class _PasswordAcceptor(AuthAcceptor):
    def __init__(self, dictionary: dict[bytes, bytes], entropy: Entropy) -> None:
        self._dictionary = dictionary
        self._entropy = entropy
        self._nonce: int | None = None

    def init_ack(self, init_syn: Value) -> Value:
        expect(init_syn, NoneType, f"{NAME}: InitSyn")
        self._nonce = int.from_bytes(self._entropy(NONCE_BYTES), "little")
        return self._nonce

    def open_ack(self, open_syn: Value) -> Value:
        nonce, self._nonce = self._nonce, None
        if nonce is None:
            raise AuthError(f"{NAME}: the nonce was used already, or none was given; connect again")
        user, proof = _read_open_syn(expect(open_syn, bytes, f"{NAME}: OpenSyn"))
        password = self._dictionary.get(user)
        right = hmac.compare_digest(prove(nonce, DECOY if password is None else password), proof)
        if password is None or not right:
            raise AuthError(f"{NAME}: user {printable(user)} is unknown, or has another password")
        self.identity = user.decode()
        return None


def _read_open_syn(data: bytes) -> tuple[bytes, bytes]:
    with refusing(f"{NAME}: OpenSyn"):
        r = ByteReader(data)
        user, proof = r.block("user", MAX_USER_BYTES), r.block("hmac")
        r.finish("hmac")
    return user, proof


def read_dictionary(path: Path, *, strict: bool = False) -> dict[str, bytes]:
    """Read a file of `user:password` lines. `strict`: refuse it if other users may read it.

    Blank lines and blanks around user and password do not count; a password may hold ':'.
    """
    users: dict[str, bytes] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(read_secret(path, strict=strict).split("\n"), start=1):
        where = f"{path} line {number}"
        if not line.strip():
            continue
        user, colon, password = (part.strip() for part in line.partition(":"))
        if not colon:
            raise AuthError(f"{where}: no ':' between user and password")
        _, users_password = _encode(user, password, where)
        if user in users:
            raise AuthError(f"{where}: the user of line {lines[user]} again; remove one")
        if len(users) == MAX_USERS:
            raise AuthError(f"{where}: more than {MAX_USERS} users")
        users[user], lines[user] = users_password, number
    return users


def _encode(user: str, password: str | bytes, where: str) -> tuple[bytes, bytes]:
    """Return user and password as bytes within the limits."""
    return (
        _bytes(user, MAX_USER_BYTES, f"{where}: the user"),
        _bytes(password, MAX_PASSWORD_BYTES, f"{where}: the password"),
    )


def _bytes(text: str | bytes, limit: int, what: str) -> bytes:
    try:
        raw = text.encode() if isinstance(text, str) else bytes(text)
    except UnicodeEncodeError:
        raise AuthError(f"{what} has a character that UTF-8 cannot carry") from None
    if not 0 < len(raw) <= limit:
        raise AuthError(f"{what} has {len(raw)} bytes, not 1 to {limit}")
    return raw
