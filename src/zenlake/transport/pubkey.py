"""Public key authentication: the opener proves its RSA key by decrypting the acceptor's nonce.

The acceptor encrypts a nonce for the opener's key, and the opener returns it encrypted for the
acceptor's. An opener without known keys decrypts for any acceptor: give it the acceptors' keys.
Random bytes are an argument, except for the padding, which the library draws itself.
Rust: `io/zenoh-transport/src/unicast/establishment/ext/auth/pubkey.rs`.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable
from pathlib import Path
from types import NoneType

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import (
    RSAPrivateKey,
    RSAPublicKey,
    RSAPublicNumbers,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from zenlake.errors import AuthError
from zenlake.transport.auth import (
    AuthAcceptor,
    Authenticator,
    AuthOpener,
    Entropy,
    Value,
    expect,
    read_secret,
    refusing,
)
from zenlake.transport.rsa_key import (
    MAX_KEY_BYTES,
    KeyNumbers,
    check_numbers,
    read_numbers,
    write_numbers,
)
from zenlake.wire.cursor import ByteReader, ByteWriter, encode

NAME = "public-key"
NONCE_BYTES = 8
MAX_KNOWN_KEYS = 10_000

Source = str | Path
"PEM text, or the file that holds it."


class PublicKey(Authenticator):
    """This node's RSA key, and the public keys of the nodes it accepts.

    A source of `known_keys` holds one or more public keys, each in its own PEM block. A node that
    connects here must have one of them: without known keys every node is refused. A node that this
    node connects to must have one of them too, unless there are no known keys.
    """

    ext_id = 1
    name = NAME

    def __init__(
        self, private_key: Source, known_keys: Iterable[Source] = (), *, strict: bool = False
    ) -> None:
        """`strict`: refuse a private key in a file that users other than its owner may read."""
        self._private = _load_private(private_key, strict)
        self._known: dict[KeyNumbers, RSAPublicKey] = {}
        for source in known_keys:
            self._known.update(load_public_keys(source))
        if len(self._known) > MAX_KNOWN_KEYS:
            raise AuthError(f"{NAME}: {len(self._known)} known keys, more than {MAX_KNOWN_KEYS}")

    def check_public(self, source: Source) -> None:
        """Raise AuthError unless `source` holds the public key of this node's private key."""
        own = _numbers_of(self._private.public_key(), NAME)
        if set(load_public_keys(source)) != {own}:
            raise AuthError(
                f"{NAME}: the public key does not belong to the private key: it is not needed, so "
                "leave it out, or give the one that belongs to it"
            )

    @property
    def fingerprint(self) -> str:
        """Fingerprint of this node's own key."""
        return fingerprint(self._private.public_key())

    def opener(self, entropy: Entropy) -> AuthOpener:
        return _PublicKeyOpener(self._private, self._known)

    def acceptor(self, entropy: Entropy) -> AuthAcceptor:
        return _PublicKeyAcceptor(self._private, self._known, entropy)

    def __repr__(self) -> str:
        return f"PublicKey({self.fingerprint}, keys known={len(self._known)})"


class _PublicKeyOpener(AuthOpener):
    def __init__(self, private: RSAPrivateKey, known: dict[KeyNumbers, RSAPublicKey]) -> None:
        self._private = private
        self._known = known

    def init_syn(self) -> Value:
        return encode(write_key, self._private.public_key())

    def open_syn(self, init_ack: Value) -> Value:
        with refusing(f"{NAME}: InitAck"):
            r = ByteReader(expect(init_ack, bytes, f"{NAME}: InitAck"))
            numbers, sealed = read_key(r), r.block("nonce", MAX_KEY_BYTES)
            r.finish("nonce")
        peer = self._known.get(numbers)
        if peer is None and self._known:
            raise AuthError(f"{NAME}: the acceptor has a key that is not known here")
        nonce = decrypt(self._private, sealed)
        if len(nonce) != NONCE_BYTES:
            raise AuthError(f"{NAME}: InitAck has no nonce for this node's key")
        return encode(ByteWriter.block, "nonce", encrypt(peer or _key_of(numbers), nonce))

    def open_ack(self, value: Value) -> None:
        expect(value, NoneType, f"{NAME}: OpenAck")


class _PublicKeyAcceptor(AuthAcceptor):
    def __init__(
        self, private: RSAPrivateKey, known: dict[KeyNumbers, RSAPublicKey], entropy: Entropy
    ) -> None:
        self._private = private
        self._known = known
        self._entropy = entropy
        self._peer: RSAPublicKey | None = None
        self._nonce: bytes | None = None

    def init_ack(self, init_syn: Value) -> Value:
        with refusing(f"{NAME}: InitSyn"):
            r = ByteReader(expect(init_syn, bytes, f"{NAME}: InitSyn"))
            numbers = read_key(r)
            r.finish("exponent")
        self._peer = self._known.get(numbers)
        if self._peer is None:
            raise AuthError(f"{NAME}: the peer's key is not one of the {len(self._known)} known")
        self._nonce = self._entropy(NONCE_BYTES)
        w = ByteWriter()
        write_key(w, self._private.public_key())
        w.block("nonce", encrypt(self._peer, self._nonce))
        return bytes(w.out)

    def open_ack(self, open_syn: Value) -> Value:
        nonce, self._nonce = self._nonce, None
        if nonce is None or self._peer is None:
            raise AuthError(f"{NAME}: the nonce was used already, or none was given; connect again")
        with refusing(f"{NAME}: OpenSyn"):
            r = ByteReader(expect(open_syn, bytes, f"{NAME}: OpenSyn"))
            sealed = r.block("nonce", MAX_KEY_BYTES)
            r.finish("nonce")
        if not hmac.compare_digest(decrypt(self._private, sealed), nonce):
            raise AuthError(f"{NAME}: the peer did not decrypt the nonce: it lacks the private key")
        self.identity = fingerprint(self._peer)
        return None


def encrypt(key: RSAPublicKey, nonce: bytes) -> bytes:
    try:
        return key.encrypt(nonce, PKCS1v15())
    except ValueError:  # The numbers are not a valid RSA key.
        raise AuthError(f"{NAME}: nothing can be encrypted for the peer's key") from None


def decrypt(key: RSAPrivateKey, sealed: bytes) -> bytes:
    """Return the plain bytes; b"" or random bytes if `sealed` is not for this key."""
    try:
        return key.decrypt(sealed, PKCS1v15())
    except ValueError:
        return b""


def fingerprint(key: RSAPublicKey) -> str:
    """Return the SHA-256 of the key as `openssl pkey -pubin -outform DER` writes it."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return "sha256:" + hashlib.sha256(der).hexdigest()


def write_key(w: ByteWriter, key: RSAPublicKey) -> None:
    numbers = key.public_numbers()
    write_numbers(w, (numbers.n, numbers.e))


def read_key(r: ByteReader) -> KeyNumbers:
    """Decode a peer's key and check that its numbers are safe to compute with."""
    return read_numbers(r, f"{NAME}: the peer's key")


def _key_of(numbers: KeyNumbers) -> RSAPublicKey:
    modulus, exponent = numbers
    try:
        return RSAPublicNumbers(exponent, modulus).public_key()
    except ValueError:
        raise AuthError(f"{NAME}: the peer's key is not an RSA key") from None


_PUBLIC_BLOCK = re.compile(r"-----BEGIN ((?:RSA )?PUBLIC KEY)-----.*?-----END \1-----", re.DOTALL)
_BEGIN = "-----BEGIN "


def load_public_keys(source: Source) -> dict[KeyNumbers, RSAPublicKey]:
    """Return every public key of a PEM text or file; AuthError if none, or other blocks."""
    text, where = _text_of(source, strict=False)
    blocks = [match.group() for match in _PUBLIC_BLOCK.finditer(text)]
    if not blocks or len(blocks) != text.count(_BEGIN):
        raise AuthError(
            f"{where}: {len(blocks)} PEM public keys in {text.count(_BEGIN)} PEM blocks; "
            f"write public keys only, one at least (a file is given as a Path)"
        )
    keys: dict[KeyNumbers, RSAPublicKey] = {}
    for number, block in enumerate(blocks, start=1):
        what = f"{where}: key {number}"
        try:
            key = load_pem_public_key(block.encode())
        except (ValueError, UnsupportedAlgorithm):
            raise AuthError(f"{what} cannot be read") from None
        if not isinstance(key, RSAPublicKey):
            raise AuthError(f"{what} is not an RSA key")
        keys[_numbers_of(key, what)] = key
    return keys


def _load_private(source: Source, strict: bool) -> RSAPrivateKey:
    text, where = _text_of(source, strict)
    try:
        key = load_pem_private_key(text.encode(), password=None)
    except TypeError:
        raise AuthError(f"{where} is encrypted; store it decrypted, with mode 600") from None
    except (ValueError, UnsupportedAlgorithm):
        raise AuthError(
            f"{where} is not a private key in PEM (a file is given as a Path)"
        ) from None
    if not isinstance(key, RSAPrivateKey):
        raise AuthError(f"{where} is not an RSA key")
    _numbers_of(key.public_key(), where)
    return key


def _text_of(source: Source, strict: bool) -> tuple[str, str]:
    """Return the PEM text, and its name in errors."""
    if isinstance(source, Path):
        return read_secret(source, strict=strict), f"{NAME}: {source}"
    return source, f"{NAME}: the PEM text"


def _numbers_of(key: RSAPublicKey, what: str) -> KeyNumbers:
    numbers = key.public_numbers()
    return check_numbers((numbers.n, numbers.e), what)
