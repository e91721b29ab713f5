"""RSA keys as handshakes carry them: two numbers, each a length and little-endian bytes.

Knows the layout and which numbers are safe to compute with. Does not encrypt anything.
Rust: `ZPublicKey` in `io/zenoh-transport/src/unicast/establishment/ext/auth/pubkey.rs`.
"""

from zenlake.errors import AuthError
from zenlake.wire.cursor import ByteReader, ByteWriter

MIN_KEY_BITS = 512  # Smallest modulus accepted, as in Rust; new keys should have 2048 or more.
MAX_KEY_BITS = 4096  # Largest modulus accepted, as in Rust.
MAX_KEY_BYTES = MAX_KEY_BITS // 8
EXPONENTS = range(3, 1 << 33, 2)  # Public exponents accepted, as in Rust.

KeyNumbers = tuple[int, int]
"Modulus and exponent."


def write_numbers(w: ByteWriter, numbers: KeyNumbers) -> None:
    for field, number in zip(("modulus", "exponent"), numbers, strict=True):
        w.block(field, number.to_bytes((number.bit_length() + 7) // 8, "little"))


def read_numbers(r: ByteReader, what: str) -> KeyNumbers:
    """Decode a peer's key and check that its numbers are safe to compute with."""
    modulus = int.from_bytes(r.block("modulus", MAX_KEY_BYTES), "little")
    exponent = int.from_bytes(r.block("exponent", MAX_KEY_BYTES), "little")
    return check_numbers((modulus, exponent), what)


def check_numbers(numbers: KeyNumbers, what: str) -> KeyNumbers:
    """Return `numbers`. AuthError, with the name `what`: they are not those of an RSA key."""
    modulus, exponent = numbers
    if not MIN_KEY_BITS <= modulus.bit_length() <= MAX_KEY_BITS or modulus % 2 == 0:
        raise AuthError(f"{what} is not an RSA key of {MIN_KEY_BITS} to {MAX_KEY_BITS} bits")
    if exponent not in EXPONENTS:
        raise AuthError(f"{what} needs an odd exponent of 3 to {EXPONENTS.stop - 1}")
    return numbers
