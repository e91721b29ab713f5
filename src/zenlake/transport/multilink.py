"""MultiLink: a node proves on each further link that it is the node of the first one.

The messages are those of public key authentication, with an RSA key of 512 bits that a node makes
when it starts and never stores: it tells two nodes apart, it keeps no secret. Libraries
refuse so small a key, so the numbers are computed here. Random bytes are an argument.
Rust: `io/zenoh-transport/src/unicast/establishment/ext/multilink.rs`, `establishment/mod.rs`.
"""

import hashlib
import hmac

from zenlake.errors import AuthError
from zenlake.transport.auth import Entropy, refusing
from zenlake.transport.rsa_key import MAX_KEY_BYTES, KeyNumbers, read_numbers, write_numbers
from zenlake.wire.cursor import ByteReader, ByteWriter, encode
from zenlake.wire.zenohid import WireZenohId

NAME = "multi-link"
KEY_BITS = 512
EXPONENT = 0x10001
NONCE_BYTES = 8
MIN_PADDING = 8  # Nonzero bytes between the header and the message (PKCS#1 v1.5).
PRIME_TESTS = 40  # Rounds of Miller-Rabin: an error has a probability below 2**-80.
MAX_DRAWS = 10_000  # Numbers tried for one prime; about 90 are expected.
SMALL_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73)


class MultiLinkKey:
    """The key of one node: its public numbers, and the exponent that decrypts."""

    def __init__(self, entropy: Entropy) -> None:
        while True:
            p, q = _draw_prime(entropy), _draw_prime(entropy)
            if p != q:
                break
        self.public: KeyNumbers = (p * q, EXPONENT)
        self._private = pow(EXPONENT, -1, (p - 1) * (q - 1))

    def decrypt(self, sealed: bytes) -> bytes:
        """Return the plain bytes. AuthError: `sealed` is not for this key."""
        modulus, _ = self.public
        size = KEY_BITS // 8
        number = int.from_bytes(sealed, "big")
        if len(sealed) == size and number < modulus:
            block = pow(number, self._private, modulus).to_bytes(size, "big")
            padding, _, plain = block[2:].partition(b"\0")
            if block[:2] == b"\0\x02" and len(padding) >= MIN_PADDING:
                return plain
        raise AuthError(f"{NAME}: the nonce is not encrypted for this node's key")


def encrypt(key: KeyNumbers, plain: bytes, entropy: Entropy) -> bytes:
    """Encrypt as PKCS#1 v1.5 does."""
    modulus, exponent = key
    size = (modulus.bit_length() + 7) // 8
    padding = bytes(byte % 255 + 1 for byte in entropy(size - len(plain) - 3))
    block = b"\0\x02" + padding + b"\0" + plain
    return pow(int.from_bytes(block, "big"), exponent, modulus).to_bytes(size, "big")


class MultiLinkSteps:
    """The steps of one handshake, of either side. `peer` is the other node's key once it is
    known; it stays None if the other node takes one link only."""

    def __init__(self, key: MultiLinkKey, entropy: Entropy) -> None:
        self.peer: KeyNumbers | None = None
        self._key = key
        self._entropy = entropy
        self._nonce = b""

    def init_syn(self) -> bytes:
        return encode(write_numbers, self._key.public)

    def init_ack(self, init_syn: bytes | None) -> bytes | None:
        """Take the opener's key; return the acceptor's, and a nonce for the opener."""
        if init_syn is None:
            return None
        with refusing(f"{NAME}: InitSyn"):
            r = ByteReader(init_syn)
            self.peer = read_numbers(r, f"{NAME}: the peer's key")
            r.finish("exponent")
        self._nonce = self._entropy(NONCE_BYTES)
        w = ByteWriter()
        write_numbers(w, self._key.public)
        w.block("nonce", encrypt(self.peer, self._nonce, self._entropy))
        return bytes(w.out)

    def open_syn(self, init_ack: bytes | None) -> bytes | None:
        """Take the acceptor's key and nonce; return the nonce for the acceptor."""
        if init_ack is None:
            return None
        with refusing(f"{NAME}: InitAck"):
            r = ByteReader(init_ack)
            self.peer = read_numbers(r, f"{NAME}: the peer's key")
            sealed = r.block("nonce", MAX_KEY_BYTES)
            r.finish("nonce")
        nonce = self._key.decrypt(sealed)
        return encode(ByteWriter.block, "nonce", encrypt(self.peer, nonce, self._entropy))

    def check_open_syn(self, open_syn: bytes | None) -> bool:
        """Check the nonce that the opener returned; whether there are to be several links."""
        if self.peer is None:
            return False
        if open_syn is None:
            raise AuthError(f"{NAME}: OpenSyn has no nonce")
        with refusing(f"{NAME}: OpenSyn"):
            r = ByteReader(open_syn)
            sealed = r.block("nonce", MAX_KEY_BYTES)
            r.finish("nonce")
        if not hmac.compare_digest(self._key.decrypt(sealed), self._nonce):
            raise AuthError(f"{NAME}: the peer did not decrypt the nonce: it lacks the private key")
        return True

    def take_open_ack(self, agreed: bool) -> None:
        """Note whether the acceptor agreed to several links."""
        if not agreed:
            self.peer = None


def first_sn(own: WireZenohId, peer: WireZenohId, mask: int) -> int:
    """Return the first sequence number towards `peer`: that of every link between two nodes."""
    digest = hashlib.shake_128(own.raw + peer.raw).digest(4)
    return int.from_bytes(digest, "little") & mask


def _draw_prime(entropy: Entropy) -> int:
    """Draw a prime of half the key's bits, whose two highest bits are set."""
    bits = KEY_BITS // 2
    for _ in range(MAX_DRAWS):
        number = int.from_bytes(entropy(bits // 8), "big") | 0b11 << (bits - 2) | 1
        if number % EXPONENT != 1 and _is_prime(number, entropy):
            return number
    raise AuthError(f"{NAME}: the random numbers of this machine have no prime among them")


def _is_prime(number: int, entropy: Entropy) -> bool:
    if any(number % prime == 0 for prime in SMALL_PRIMES):
        return False
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(PRIME_TESTS):
        power = pow(2 + int.from_bytes(entropy(16), "big"), odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True
