"""Authentication: both mechanisms, both sides, recorded handshakes, and what must be refused."""

import hmac
import random
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.vectors import load
from zenlake.errors import AuthError, EncodeError
from zenlake.transport import pubkey, usrpwd
from zenlake.transport.auth import (
    AcceptorAuth,
    AuthAcceptor,
    Authenticator,
    AuthOpener,
    Entropy,
    OpenerAuth,
    Value,
    is_exposed,
    read_chain,
    read_secret,
    write_chain,
)
from zenlake.transport.pubkey import PublicKey, load_public_keys
from zenlake.transport.usrpwd import UserPassword, prove, read_dictionary
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.init import Init, read_init
from zenlake.wire.open import Open, read_open

pytestmark = pytest.mark.slow

ENTROPY = secrets.token_bytes
DICTIONARY = {"user": b"password", "other": b"secret"}
GUARD = UserPassword(dictionary=DICTIONARY)
USER = UserPassword("user", "password")


# Keys: made once, small because they guard nothing.


@cache
def private_key(name: str) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 1024)


def private_pem(name: str, password: bytes | None = None) -> str:
    encryption = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    return (
        private_key(name)
        .private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, encryption
        )
        .decode()
    )


def public_pem(
    key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey,
    form: serialization.PublicFormat = serialization.PublicFormat.SubjectPublicKeyInfo,
) -> str:
    return key.public_bytes(serialization.Encoding.PEM, form).decode()


def pem_of(name: str) -> str:
    return public_pem(private_key(name).public_key())


@cache
def keyed(name: str, *knows: str) -> PublicKey:
    return PublicKey(private_pem(name), [pem_of(other) for other in knows])


def handshake(
    opener_side: Iterable[Authenticator],
    acceptor_side: Iterable[Authenticator],
    *,
    init_ack: Callable[[bytes], bytes] = bytes,
    open_syn: Callable[[bytes], bytes] = bytes,
) -> dict[str, str]:
    """One handshake over bytes that may be changed on the way; who was accepted."""
    opener, acceptor = OpenerAuth(opener_side, ENTROPY), AcceptorAuth(acceptor_side, ENTROPY)
    ack = acceptor.init_ack(opener.init_syn())
    syn = opener.open_syn(ack and init_ack(ack))
    done = acceptor.open_ack(syn and open_syn(syn))
    opener.open_ack(done)
    return acceptor.identities


# Recorded handshakes and vectors.


@pytest.mark.parametrize(
    ("nonce", "proof"),
    [
        (0xA981D168FAE80724, "f1066968af91e800df9af90ead31a918b396780106ef36b5ebfa7362c79255a6"),
        (0x0102030405060708, "8ffcb6b10e8828a7ce84f950067f1e87ce2927113bb112d1acb8c1bb35c8b580"),
    ],
)
def test_proof_vectors(nonce: int, proof: str) -> None:
    assert prove(nonce, b"password").hex() == proof


def recorded(name: str) -> list[bytes | None]:
    """The Auth extensions of a recorded handshake: InitSyn, InitAck, OpenSyn, OpenAck."""
    found: list[bytes | None] = []
    for _, batch in load(name).batches:
        message: Init | Open
        r = ByteReader(batch)
        header = r.u8("header")
        if header & 0x1F == 1:
            message = read_init(r, header)
        elif header & 0x1F == 2:
            message = read_open(r, header)
        else:
            break
        found.append(message.auth)
    return found


def nonce_of(init_ack: bytes | None) -> bytes:
    value = read_chain(init_ack, "InitAck")[2]
    assert isinstance(value, int)
    return value.to_bytes(8, "little")


def test_recorded_handshake_from_both_sides() -> None:
    init_syn, init_ack, open_syn, open_ack = recorded("auth_accepted")
    opener = OpenerAuth([USER], ENTROPY)
    assert opener.init_syn() == init_syn == b"\x02"
    assert opener.open_syn(init_ack) == open_syn
    opener.open_ack(open_ack)

    nonce = nonce_of(init_ack)
    acceptor = AcceptorAuth([GUARD], lambda n: nonce[:n])
    assert acceptor.init_ack(init_syn) == init_ack
    assert acceptor.identities == {}
    assert acceptor.open_ack(open_syn) == open_ack == b"\x02"
    assert acceptor.identities == {"user-password": "user"}


def test_recorded_wrong_password_is_refused() -> None:
    init_syn, init_ack, open_syn = recorded("auth_wrong_password")
    nonce = nonce_of(init_ack)
    acceptor = AcceptorAuth([GUARD], lambda n: nonce[:n])
    assert acceptor.init_ack(init_syn) == init_ack
    with pytest.raises(AuthError, match="unknown, or has another password"):
        acceptor.open_ack(open_syn)
    assert acceptor.identities == {}
    wrong = OpenerAuth([UserPassword("user", "passw0rd")], ENTROPY)
    wrong.init_syn()
    assert wrong.open_syn(init_ack) == open_syn


def test_recorded_missing_credentials_are_refused() -> None:
    assert recorded("auth_missing") == [None]
    with pytest.raises(AuthError, match=r"InitSyn: user-password .* required"):
        AcceptorAuth([GUARD], ENTROPY).init_ack(None)


def test_recorded_public_key_is_read_and_written_alike() -> None:
    (init_syn,) = recorded("auth_pubkey")
    value = read_chain(init_syn, "InitSyn")[1]
    assert isinstance(value, bytes)
    modulus, exponent = pubkey.read_key(ByteReader(value))
    assert (modulus.bit_length(), exponent) == (1024, 65537)
    key = rsa.RSAPublicNumbers(exponent, modulus).public_key()
    w = ByteWriter()
    pubkey.write_key(w, key)
    assert bytes(w.out) == value
    guard = PublicKey(private_pem("b"), [public_pem(key)])
    assert AcceptorAuth([guard], ENTROPY).init_ack(init_syn) is not None
    with pytest.raises(AuthError, match="not one of the 0 known"):
        AcceptorAuth([keyed("b")], ENTROPY).init_ack(init_syn)


# Both sides against each other.


@pytest.mark.parametrize(
    ("opener_side", "acceptor_side", "identities"),
    [
        ([], [], []),
        ([USER], [GUARD], ["user-password"]),
        ([keyed("a", "b")], [keyed("b", "a", "c")], ["public-key"]),
        ([keyed("a")], [keyed("b", "a")], ["public-key"]),
        ([USER, keyed("a", "b")], [keyed("b", "a"), GUARD], ["public-key", "user-password"]),
        ([], [UserPassword("other", "secret")], []),
        ([UserPassword(dictionary=DICTIONARY)], [], []),
    ],
)
def test_both_sides_agree_on_the_identities(
    opener_side: list[Authenticator],
    acceptor_side: list[Authenticator],
    identities: list[str],
) -> None:
    who = handshake(opener_side, acceptor_side)
    assert list(who) == identities
    expected = {"user-password": "user", "public-key": keyed("a").fingerprint}
    assert who == {name: expected[name] for name in identities}


@pytest.mark.parametrize(
    ("opener_side", "acceptor_side", "why"),
    [
        ([], [GUARD], "InitSyn: user-password .* required"),
        ([], [keyed("b", "a")], "InitSyn: public-key .* required"),
        ([USER], [GUARD, keyed("b", "a")], "public-key .* required"),
        ([keyed("a", "b")], [GUARD, keyed("b", "a")], "user-password .* required"),
        ([USER], [UserPassword(dictionary={})], "unknown, or has another password"),
        ([UserPassword("user", "Password")], [GUARD], "unknown, or has another password"),
        ([UserPassword("User", "password")], [GUARD], "unknown, or has another password"),
        ([UserPassword("user", "secret")], [GUARD], "unknown, or has another password"),
        ([UserPassword("who", usrpwd.DECOY)], [GUARD], "unknown, or has another password"),
        ([keyed("a", "b")], [keyed("b")], "not one of the 0 known"),
        ([keyed("a", "b")], [keyed("b", "c")], "not one of the 1 known"),
        ([keyed("a", "c")], [keyed("b", "a")], "key that is not known here"),
        # The Rust opener too refuses an acceptor that does not look at its credentials.
        ([USER], [], "InitAck: the peer does not answer user-password"),
        ([USER, keyed("a")], [GUARD], "InitAck: the peer does not answer public-key"),
    ],
)
def test_a_missing_or_wrong_credential_is_refused_with_its_reason(
    opener_side: list[Authenticator], acceptor_side: list[Authenticator], why: str
) -> None:
    with pytest.raises(AuthError, match=why):
        handshake(opener_side, acceptor_side)


def test_an_acceptor_must_confirm_what_was_offered() -> None:
    for bad in (None, b"", b"\x01", b"\x22\x01", b"\x42\x00"):
        opener = OpenerAuth([USER], ENTROPY)
        opener.init_syn()
        opener.open_syn(b"\x22\x05")
        with pytest.raises(AuthError):
            opener.open_ack(bad)


def test_a_stolen_public_key_is_not_enough() -> None:
    """A peer that shows the key of another cannot read the nonce that is sealed for it."""
    thief, owner = keyed("thief", "b"), keyed("a", "b")
    value = owner.opener(ENTROPY).init_syn()
    for _ in range(50):
        acceptor = AcceptorAuth([keyed("b", "a")], ENTROPY)
        init_ack = acceptor.init_ack(write_chain({1: value}))
        opener = OpenerAuth([thief], ENTROPY)
        opener.init_syn()
        guess = ByteWriter()
        guess.block("nonce", pubkey.encrypt(private_key("b").public_key(), ENTROPY(8)))
        try:
            open_syn = opener.open_syn(init_ack)
        except AuthError:
            open_syn = write_chain({1: bytes(guess.out)})
        with pytest.raises(AuthError, match="lacks the private key"):
            acceptor.open_ack(open_syn)
        assert acceptor.identities == {}


# A1: a thousand wrong attempts.


def packed(user: bytes, proof: bytes) -> bytes:
    w = ByteWriter()
    w.block("user", user)
    w.block("hmac", proof)
    return bytes(w.out)


def wrong_attempts(nonce: int) -> list[bytes | None]:
    right = prove(nonce, b"password")
    values: list[Value] = [
        None,
        nonce,
        b"",
        packed(b"user", b""),
        packed(b"user", right[:-1]),
        packed(b"user", right[1:]),
        packed(b"user", right + b"\0"),
        packed(b"user", right * 2000),
        packed(b"user", bytes(32)),
        packed(b"user", prove(nonce ^ 1, b"password")),
        packed(b"user", prove(nonce, b"passwore")),
        packed(b"user", prove(nonce, b"")),
        packed(b"user", prove(nonce, b"secret")),
        packed(b"user", b"password"),
        packed(b"other", right),
        packed(b"", right),
        packed(b"", prove(nonce, b"")),
        packed(b"nobody", right),
        packed(b"nobody", prove(nonce, usrpwd.DECOY)),
        packed(b"user\0", right),
        packed(b"\xff\xfe", right),
        packed(b"u" * 5000, right),
        packed(b"user", right) + b"\0",
    ]
    right_value = packed(b"user", right)
    chains = [write_chain({2: value}) for value in values]
    chains += [
        None,
        b"",
        write_chain({1: right_value}),
        write_chain({3: right_value}),
        b"\x52" + bytes([len(right_value)]) + right_value,  # mandatory
        (write_chain({2: right_value}) or b"") + b"\0",
        b"\xc2" + bytes([len(right_value)]) + right_value,  # another should follow
        b"\xc2\x00\x42" + bytes([len(right_value)]) + right_value,  # twice
    ]
    return chains


def test_a_thousand_wrong_attempts_and_none_accepted() -> None:
    tried = 0
    while tried < 1000:
        count = len(wrong_attempts(0))
        for index in range(count):
            acceptor = AcceptorAuth([GUARD], ENTROPY)
            nonce = int.from_bytes(nonce_of(acceptor.init_ack(b"\x02")), "little")
            with pytest.raises(AuthError):
                acceptor.open_ack(wrong_attempts(nonce)[index])
            assert acceptor.identities == {}
            tried += 1


def test_an_unknown_user_costs_what_a_known_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A7, without a clock: the same work is done, and the answer is the same."""
    work: list[int] = []

    def counted(nonce: int, password: bytes) -> bytes:
        work.append(len(password))
        return prove(nonce, password)

    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def comparing(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return compare(a, b)

    monkeypatch.setattr(usrpwd, "prove", counted)
    monkeypatch.setattr(hmac, "compare_digest", comparing)
    for user in (b"user", b"nobody"):
        acceptor = GUARD.acceptor(ENTROPY)
        assert acceptor is not None
        acceptor.init_ack(None)
        with pytest.raises(AuthError, match="unknown, or has another password"):
            acceptor.open_ack(packed(user, bytes(32)))
    assert len(work) == 2
    assert max(work) < 128  # one block of the hash, for both
    assert compared == [(32, 32)] * 2


# A2: replays; and every step once.


@pytest.mark.parametrize("side", [[USER], [keyed("a", "b")], [USER, keyed("a", "b")]])
def test_a_captured_open_syn_is_worth_nothing(side: list[Authenticator]) -> None:
    def guards() -> list[Authenticator]:  # made again: as after a restart
        names = {a.name for a in side}
        known = PublicKey(private_pem("b"), [pem_of("a")])
        every: list[Authenticator] = [UserPassword(dictionary=DICTIONARY), known]
        return [a for a in every if a.name in names]

    captured: list[bytes] = []

    def capture(data: bytes) -> bytes:
        captured.append(data)
        return data

    assert handshake(side, guards(), open_syn=capture)
    for _ in range(100):
        with pytest.raises(AuthError):
            handshake(side, guards(), open_syn=lambda _: captured[0])


@pytest.mark.parametrize("first", ["right", "wrong"])
@pytest.mark.parametrize(
    ("guard", "user"), [(GUARD, USER), (keyed("b", "a"), keyed("a", "b"))], ids=["usrpwd", "pubkey"]
)
def test_one_nonce_one_use(guard: Authenticator, user: Authenticator, first: str) -> None:
    """Also without the chain around it, and also after a wrong answer."""
    opener, acceptor = user.opener(ENTROPY), guard.acceptor(ENTROPY)
    assert opener is not None
    assert acceptor is not None
    open_syn = opener.open_syn(acceptor.init_ack(opener.init_syn()))
    if first == "right":
        acceptor.open_ack(open_syn)
    else:
        with pytest.raises(AuthError):
            acceptor.open_ack(b"\x00\x00")
    with pytest.raises(AuthError, match="used already"):
        acceptor.open_ack(open_syn)


def test_no_answer_before_the_question() -> None:
    for guard in (GUARD, keyed("b", "a")):
        acceptor = guard.acceptor(ENTROPY)
        assert acceptor is not None
        with pytest.raises(AuthError, match="or none was given"):
            acceptor.open_ack(packed(b"user", prove(0, b"password")))


def test_steps_are_taken_once_and_in_order() -> None:
    acceptor = AcceptorAuth([GUARD], ENTROPY)
    with pytest.raises(AuthError, match="OpenAck is out of turn"):
        acceptor.open_ack(None)
    opener = OpenerAuth([USER], ENTROPY)
    with pytest.raises(AuthError, match="OpenAck is out of turn"):
        opener.open_ack(b"\x02")
    open_syn_of = opener.open_syn
    with pytest.raises(AuthError, match="OpenSyn is out of turn"):
        open_syn_of(b"\x22\x05")
    ack = acceptor.init_ack(opener.init_syn())
    with pytest.raises(AuthError, match="InitAck is out of turn"):
        acceptor.init_ack(b"\x02")
    acceptor.open_ack(open_syn_of(ack))
    with pytest.raises(AuthError, match="OpenAck is out of turn"):
        acceptor.open_ack(b"\x02")
    opener.open_ack(b"\x02")
    with pytest.raises(AuthError, match="OpenAck is out of turn"):
        opener.open_ack(b"\x02")


def test_a_failed_answer_ends_the_handshake() -> None:
    acceptor = AcceptorAuth([GUARD], ENTROPY)
    nonce = int.from_bytes(nonce_of(acceptor.init_ack(b"\x02")), "little")
    with pytest.raises(AuthError):
        acceptor.open_ack(None)
    with pytest.raises(AuthError, match="out of turn"):
        acceptor.open_ack(write_chain({2: packed(b"user", prove(nonce, b"password"))}))
    assert acceptor.identities == {}


def test_one_of_two_mechanisms_is_none() -> None:
    acceptor = AcceptorAuth([GUARD, keyed("b", "a")], ENTROPY)
    opener = OpenerAuth([UserPassword("user", "wrong"), keyed("a", "b")], ENTROPY)
    open_syn = opener.open_syn(acceptor.init_ack(opener.init_syn()))
    with pytest.raises(AuthError, match="user-password"):
        acceptor.open_ack(open_syn)
    assert acceptor.identities == {}


# A6: nonces.


def test_a_hundred_thousand_nonces_without_a_duplicate() -> None:
    nonces = set()
    for _ in range(100_000):
        acceptor = GUARD.acceptor(ENTROPY)
        assert acceptor is not None
        nonces.add(acceptor.init_ack(None))
    assert len(nonces) == 100_000
    assert max(n.bit_length() for n in nonces if isinstance(n, int)) == 64


@pytest.mark.parametrize("guard", [GUARD, keyed("b", "a")], ids=["usrpwd", "pubkey"])
def test_a_nonce_takes_64_bits_of_the_given_entropy(guard: Authenticator) -> None:
    asked: list[int] = []

    def entropy(n: int) -> bytes:
        asked.append(n)
        return ENTROPY(n)

    opener = keyed("a").opener(ENTROPY)
    acceptor = guard.acceptor(entropy)
    assert acceptor is not None
    acceptor.init_ack(None if guard is GUARD else opener.init_syn())
    assert asked == [8]


# Hostile bytes.


EVERY_BYTE = range(1, 256)
EVERY_BIT = [1 << bit for bit in range(8)]  # One flip per bit: all values would take too long.


def damage_count(length: int, flips: Sequence[int]) -> int:
    return length * (1 + len(flips))


def damage(data: bytes, index: int, flips: Sequence[int]) -> bytes:
    """Of every truncation and every change of one byte by one of `flips`, this one."""
    at, flip = divmod(index, 1 + len(flips))
    if flip == len(flips):
        return data[:at]
    return data[:at] + bytes([data[at] ^ flips[flip]]) + data[at + 1 :]


def damaged(data: bytes) -> Iterator[bytes]:
    for index in range(damage_count(len(data), EVERY_BYTE)):
        yield damage(data, index, EVERY_BYTE)


SIDES: dict[str, tuple[list[Authenticator], list[Authenticator]]] = {
    "usrpwd": ([USER], [GUARD]),
    "pubkey": ([keyed("a", "b")], [keyed("b", "a")]),
    "pubkey, no known acceptor": ([keyed("a")], [keyed("b", "a")]),
    "both": ([USER, keyed("a", "b")], [GUARD, keyed("b", "a")]),
}


@pytest.mark.parametrize("kind", SIDES)
def test_a_damaged_init_syn_is_refused(kind: str) -> None:
    opener_side, acceptor_side = SIDES[kind]
    init_syn = OpenerAuth(opener_side, ENTROPY).init_syn()
    assert init_syn is not None
    for bad in damaged(init_syn):
        with pytest.raises(AuthError):
            AcceptorAuth(acceptor_side, ENTROPY).init_ack(bad)


@pytest.mark.parametrize("kind", SIDES)
@pytest.mark.parametrize("step", ["init_ack", "open_syn"])
def test_a_damaged_answer_is_never_accepted(kind: str, step: str) -> None:
    opener_side, acceptor_side = SIDES[kind]
    flips = EVERY_BYTE if kind == "usrpwd" else EVERY_BIT
    lengths: list[int] = []

    def measure(data: bytes) -> bytes:
        lengths.append(len(data))
        return data

    assert len(handshake(opener_side, acceptor_side, **{step: measure})) == len(acceptor_side)
    for index in range(damage_count(lengths[0], flips)):

        def change(data: bytes, index: int = index) -> bytes:
            # Of 64 random bits the first may be zero, and the value a byte shorter than measured.
            return damage(data, index % damage_count(len(data), flips), flips)

        with pytest.raises(AuthError):
            handshake(opener_side, acceptor_side, **{step: change})


@pytest.mark.parametrize("kind", SIDES)
def test_a_damaged_open_ack_is_refused(kind: str) -> None:
    opener_side, acceptor_side = SIDES[kind]
    good = write_chain(dict.fromkeys(sorted(a.ext_id for a in acceptor_side)))
    assert good is not None
    for bad in damaged(good):
        acceptor, opener = AcceptorAuth(acceptor_side, ENTROPY), OpenerAuth(opener_side, ENTROPY)
        open_syn = opener.open_syn(acceptor.init_ack(opener.init_syn()))
        assert acceptor.open_ack(open_syn) == good
        if kind == "both" and not _lacks_one(bad):
            opener.open_ack(bad)  # the same two, in the other order or with one more
            continue
        with pytest.raises(AuthError):
            opener.open_ack(bad)


def _lacks_one(data: bytes) -> bool:
    try:
        values = read_chain(data, "OpenAck")
    except AuthError:
        return True
    return any(values.get(i, b"") is not None for i in (1, 2))


@given(st.binary(max_size=200), st.sampled_from([GUARD, keyed("b", "a")]))
def test_garbage_gives_auth_error_alone(data: bytes, guard: Authenticator) -> None:
    acceptor = AcceptorAuth([guard], ENTROPY)
    shown = None if guard is GUARD else keyed("a").opener(ENTROPY).init_syn()
    right = {guard.ext_id: shown}
    acceptor.init_ack(write_chain(right))
    with pytest.raises(AuthError):
        acceptor.open_ack(data)
    inside = guard.acceptor(ENTROPY)
    assert inside is not None
    inside.init_ack(shown)
    with pytest.raises(AuthError):
        inside.open_ack(data)
    for opener in (USER.opener(ENTROPY), keyed("a").opener(ENTROPY)):
        assert opener is not None
        with pytest.raises(AuthError):
            opener.open_syn(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("82", "end before"),
        ("62", "encoding bits 11"),
        ("12", "mandatory"),
        ("8213", "mandatory"),
        ("8202", "twice"),
        ("822205", "twice"),
        ("838302", "twice"),
        ("0200", "left over"),
        ("83" * 40, "longer than 32"),
        ("42ffffffff0f", "end before"),
    ],
)
def test_chains_that_are_none(data: str, why: str) -> None:
    with pytest.raises(AuthError, match=f"^InitSyn: .*{why}"):
        AcceptorAuth([], ENTROPY).init_ack(bytes.fromhex(data))


def test_what_nobody_asked_for_is_ignored() -> None:
    opener = OpenerAuth([USER], ENTROPY)
    opener.init_syn()
    assert opener.open_syn(bytes.fromhex("83a207 4901ff".replace(" ", ""))) is not None
    opener.open_ack(bytes.fromhex("8224 07".replace(" ", "")))
    nobody = OpenerAuth([], ENTROPY)
    assert nobody.init_syn() is None
    assert nobody.open_syn(b"\x22\x05") is None


# A mechanism that a user writes.


class Token(Authenticator, AuthOpener, AuthAcceptor):
    ext_id = 9
    name = "token"
    identity = "bearer"

    def __init__(self, number: int) -> None:
        self.number = number

    def opener(self, entropy: Entropy) -> AuthOpener:
        return self

    def acceptor(self, entropy: Entropy) -> AuthAcceptor:
        return self

    def init_syn(self) -> Value:
        return self.number

    def init_ack(self, init_syn: Value) -> Value:
        if init_syn != self.number:
            raise AuthError("token: another")
        return b"ok"

    def open_syn(self, init_ack: Value) -> Value:
        return init_ack

    def open_ack(self, open_syn: Value) -> None:
        return None


def test_a_mechanism_of_ones_own() -> None:
    assert handshake([Token(7), USER], [GUARD, Token(7)]) == {
        "user-password": "user",
        "token": "bearer",
    }
    with pytest.raises(AuthError, match="token: another"):
        handshake([Token(8)], [Token(7)])
    with pytest.raises(EncodeError):
        OpenerAuth([Token(1 << 64)], ENTROPY).init_syn()


def test_the_same_mechanism_twice_is_a_mistake() -> None:
    with pytest.raises(AuthError, match="each once"):
        AcceptorAuth([GUARD, UserPassword(dictionary={})], ENTROPY)


@pytest.mark.parametrize("ext_id", [0, 16, -1])
def test_an_id_has_four_bits(ext_id: int) -> None:
    token = Token(7)
    token.ext_id = ext_id
    with pytest.raises(AuthError, match="1 to 15"):
        OpenerAuth([token], ENTROPY)


# User and password: what is refused before any connection.


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "or a dictionary"),
        ({"user": "u"}, "give both or none"),
        ({"password": "SECRET"}, "give both or none"),
        ({"user": "", "password": "SECRET"}, "the user has 0 bytes"),
        ({"user": "u", "password": ""}, "the password has 0 bytes"),
        ({"user": "u" * 1025, "password": "SECRET"}, "the user has 1025 bytes"),
        ({"user": "u", "password": "SECRET" * 200}, "the password has 1200 bytes"),
        ({"user": "\ud800", "password": "SECRET"}, "UTF-8"),
        ({"dictionary": {"": b"SECRET"}}, "dictionary: the user has 0 bytes"),
        ({"dictionary": {"u": b""}}, "dictionary: the password has 0 bytes"),
    ],
)
def test_credentials_that_are_none(arguments: dict[str, str | dict[str, bytes]], why: str) -> None:
    make: Callable[..., UserPassword] = UserPassword
    with pytest.raises(AuthError, match=why) as caught:
        make(**arguments)
    assert "SECRET" not in str(caught.value)


def test_the_dictionary_is_taken_as_it_was() -> None:
    users = {"user": b"password"}
    guard = UserPassword(dictionary=users)
    users["intruder"] = b"x"
    with pytest.raises(AuthError):
        handshake([UserPassword("intruder", "x")], [guard])


def test_names_and_passwords_beyond_ascii() -> None:
    guard = UserPassword(dictionary={"jürgen": "пароль".encode()})
    assert handshake([UserPassword("jürgen", "пароль")], [guard]) == {"user-password": "jürgen"}


def test_reprs_and_errors_hold_no_secret() -> None:
    node = UserPassword("user", "SECRET-1", {"user": b"SECRET-1", "other": b"SECRET-2"})
    acceptor, opener = node.acceptor(ENTROPY), node.opener(ENTROPY)
    assert acceptor is not None
    acceptor.init_ack(None)
    shown = [repr(node), str(node), repr(acceptor), repr(opener)]
    with pytest.raises(AuthError) as caught:
        acceptor.open_ack(packed(b"line\nbreak\x1b[31m" + b"x" * 500, bytes(32)))
    shown += [str(caught.value), repr(caught.value.__cause__), repr(caught.value.__context__)]
    assert "SECRET" not in "".join(shown)
    assert repr(node) == "UserPassword(user='user', users known=2)"
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


# The dictionary file.


def written(folder: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path = folder / "users"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


def test_a_dictionary_file(tmp_path: Path) -> None:
    text = "user:password\n\n  other : with:colon and blank  \r\n \t\njürgen:пароль"
    assert read_dictionary(written(tmp_path, text)) == {
        "user": b"password",
        "other": b"with:colon and blank",
        "jürgen": "пароль".encode(),
    }
    assert read_dictionary(written(tmp_path, "")) == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a:SECRET\nSECRET\n", "line 2: no ':'"),
        ("a:SECRET\n:SECRET\n", "line 2: the user has 0 bytes"),
        ("a:SECRET\n\nb:\n", "line 3: the password has 0 bytes"),
        (" : \n", "line 1: the user has 0 bytes"),
        ("a:SECRET\nb:SECRET\na:SECRET2\n", "line 3: the user of line 1 again"),
        ("a:" + "SECRET" * 200, "line 1: the password has 1200 bytes"),
        (b"a:SECRET\nb:SECRET\xff\n", "byte 17 is not UTF-8"),
    ],
)
def test_a_dictionary_file_that_is_none(tmp_path: Path, text: str | bytes, why: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(AuthError, match=why) as caught:
        read_dictionary(path)
    assert str(path) in str(caught.value)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_dictionary_file_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usrpwd, "MAX_USERS", 2)
    path = written(tmp_path, "a:1\nb:2\nc:3\n")
    with pytest.raises(AuthError, match="line 3: more than 2 users"):
        read_dictionary(path)
    monkeypatch.setattr("zenlake.transport.auth.MAX_SECRET_FILE_BYTES", 11)
    with pytest.raises(AuthError, match="more than 11 bytes"):
        read_dictionary(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="nowhere cannot be read: No such file"):
        read_dictionary(tmp_path / "nowhere")
    with pytest.raises(AuthError, match="nowhere cannot be read: No such file"):
        read_dictionary(tmp_path / "nowhere", strict=True)
    with pytest.raises(AuthError, match="cannot be read: Is a directory"):
        read_dictionary(tmp_path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_others_may_use(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path, "user:password", mode)
    assert is_exposed(path)
    assert read_dictionary(path) == {"user": b"password"}
    with pytest.raises(AuthError, match="chmod 600"):
        read_dictionary(path, strict=True)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert not is_exposed(path)
    assert read_dictionary(path, strict=True) == {"user": b"password"}
    assert read_secret(path) == "user:password"


# Keys and their files.


def test_a_file_of_known_keys_is_really_loaded(tmp_path: Path) -> None:
    path = tmp_path / "known.pem"
    old_form = public_pem(private_key("c").public_key(), serialization.PublicFormat.PKCS1)
    path.write_text(f"the robots\n{pem_of('a')}\nand\n{old_form}{pem_of('d')}")
    assert len(load_public_keys(path)) == 3
    guard = PublicKey(private_pem("b"), [path])
    for name in "acd":
        assert handshake([keyed(name, "b")], [guard]) == {"public-key": keyed(name).fingerprint}
    with pytest.raises(AuthError, match="not one of the 3 known"):
        handshake([keyed("thief", "b")], [guard])
    more = PublicKey(private_pem("b"), [path, pem_of("thief")])
    assert handshake([keyed("thief", "b")], [more])


def test_a_private_key_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text(private_pem("a"))
    path.chmod(0o644)
    assert PublicKey(path).fingerprint == keyed("a").fingerprint
    with pytest.raises(AuthError, match=r"key\.pem: .*chmod 600"):
        PublicKey(path, strict=True)
    path.chmod(0o600)
    assert PublicKey(path, strict=True).fingerprint == keyed("a").fingerprint


def rsa_numbers(modulus: int, exponent: int = 65537) -> rsa.RSAPublicKey:
    return rsa.RSAPublicNumbers(exponent, modulus).public_key()


EC_KEY = ec.generate_private_key(ec.SECP256R1())
EC_PEM = EC_KEY.private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.NoEncryption(),
).decode()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "0 PEM public keys in 0 PEM blocks"),
        ("known.pem", "a file is given as a Path"),
        (pem_of("a").replace("-----END", "---"), "0 PEM public keys in 1"),
        (pem_of("a") + private_pem("a"), "1 PEM public keys in 2"),
        (pem_of("a").replace("A", "!"), "key 1 cannot be read"),
        (pem_of("a") + pem_of("c").replace("PUBLIC KEY-----\n", "PUBLIC KEY-----\nMIIB"), "key 2"),
        (public_pem(EC_KEY.public_key()), "key 1 is not an RSA key"),
        (public_pem(rsa_numbers((1 << 8191) + 1)), "512 to 4096 bits"),
    ],
    ids=lambda text: text if len(text) < 60 else "pem",
)
def test_known_keys_that_are_none(text: str, why: str) -> None:
    with pytest.raises(AuthError, match=why):
        PublicKey(private_pem("b"), [text])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a private key in PEM"),
        ("key.pem", "a file is given as a Path"),
        (pem_of("a"), "not a private key in PEM"),
        (private_pem("a").replace("A", "!"), "not a private key in PEM"),
        (private_pem("a", b"phrase"), "is encrypted"),
        (EC_PEM, "not an RSA key"),
    ],
    ids=lambda text: text if len(text) < 60 else "pem",
)
def test_private_keys_that_are_none(text: str, why: str) -> None:
    with pytest.raises(AuthError, match=why) as caught:
        PublicKey(text)
    assert "BEGIN" not in str(caught.value)


def test_known_keys_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubkey, "MAX_KNOWN_KEYS", 1)
    assert PublicKey(private_pem("b"), [pem_of("a"), pem_of("a")])
    with pytest.raises(AuthError, match="2 known keys, more than 1"):
        PublicKey(private_pem("b"), [pem_of("a"), pem_of("c")])


def key_bytes(modulus: int, exponent: int) -> bytes:
    w = ByteWriter()
    for number in (modulus, exponent):
        w.block("number", number.to_bytes((number.bit_length() + 7) // 8, "little"))
    return bytes(w.out)


GOOD_MODULUS = (1 << 1023) + 1


@pytest.mark.parametrize(
    ("modulus", "exponent"),
    [
        (0, 65537),
        (1, 65537),
        ((1 << 510) + 1, 65537),
        ((1 << 4096) + 1, 65537),
        ((1 << 100_000) + 1, 65537),
        (GOOD_MODULUS + 1, 65537),
        (GOOD_MODULUS, 0),
        (GOOD_MODULUS, 1),
        (GOOD_MODULUS, 2),
        (GOOD_MODULUS, 65536),
        (GOOD_MODULUS, (1 << 33) + 1),
        (GOOD_MODULUS, (1 << 1000) + 1),
        (GOOD_MODULUS, (1 << 100_000) + 1),
    ],
    ids=lambda number: f"{number.bit_length()}bits",
)
def test_absurd_keys_are_refused_before_they_are_used(
    modulus: int, exponent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    monkeypatch.setattr(pubkey, "encrypt", lambda *_: used.append("encrypt"))
    monkeypatch.setattr(pubkey, "decrypt", lambda *_: used.append("decrypt"))
    value = key_bytes(modulus, exponent)
    with pytest.raises(AuthError, match=r"the peer's key|InitSyn"):
        keyed("b", "a").acceptor(ENTROPY).init_ack(value)
    with pytest.raises(AuthError, match=r"the peer's key|InitAck"):
        keyed("a").opener(ENTROPY).open_syn(value + b"\x08" + bytes(8))
    assert used == []


@pytest.mark.parametrize("bits", [512, 768, 3072, 4096])
def test_sizes_of_a_peers_key(bits: int) -> None:
    """An opener that knows no keys takes any size that the Rust implementation makes or takes."""
    numbers = ((1 << (bits - 1)) + 1, 65537)
    w = ByteWriter()
    w.block("nonce", pubkey.encrypt(private_key("a").public_key(), bytes(range(8))))
    answer = keyed("a").opener(ENTROPY).open_syn(key_bytes(*numbers) + bytes(w.out))
    assert isinstance(answer, bytes)
    assert len(ByteReader(answer).block("nonce")) == bits // 8


def test_a_nonce_is_eight_bytes() -> None:
    """An opener decrypts nothing else for the peer that it connects to."""
    for secret in (b"", b"1234567", b"123456789", bytes(32)):
        w = ByteWriter()
        pubkey.write_key(w, private_key("b").public_key())
        w.block("nonce", pubkey.encrypt(private_key("a").public_key(), secret))
        with pytest.raises(AuthError, match="no nonce for this node's key"):
            keyed("a").opener(ENTROPY).open_syn(bytes(w.out))


def test_an_opener_uses_its_key_for_known_acceptors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    opener, acceptor = keyed("a", "c").opener(ENTROPY), keyed("b", "a").acceptor(ENTROPY)
    init_ack = acceptor.init_ack(opener.init_syn())
    monkeypatch.setattr(pubkey, "decrypt", lambda *_: pytest.fail("decrypted for a stranger"))
    with pytest.raises(AuthError, match="not known here"):
        opener.open_syn(init_ack)


def test_keys_show_their_fingerprint_alone() -> None:
    node = keyed("a", "b")
    assert repr(node) == f"PublicKey({node.fingerprint}, keys known=1)"
    assert node.fingerprint.startswith("sha256:")
    assert len(node.fingerprint) == 7 + 64
    lines = private_pem("a").splitlines()[1:-1]
    assert not any(line in repr(node) + repr(node.opener(ENTROPY)) for line in lines)


def test_a_wrong_answer_says_nothing_of_why() -> None:
    """Whether the padding or the nonce was wrong is not for the peer to learn."""
    said = set()
    for seed in range(64):
        opener, acceptor = keyed("a", "b").opener(ENTROPY), keyed("b", "a").acceptor(ENTROPY)
        acceptor.init_ack(opener.init_syn())
        w = ByteWriter()
        noise = random.Random(seed).randbytes(128 if seed % 2 else 100)
        other = pubkey.encrypt(private_key("b").public_key(), bytes(8))
        w.block("nonce", other if seed % 4 == 0 else noise)
        with pytest.raises(AuthError) as caught:
            acceptor.open_ack(bytes(w.out))
        said.add(str(caught.value))
    assert len(said) == 1
