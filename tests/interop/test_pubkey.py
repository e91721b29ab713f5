"""Public keys, shown by eclipse-zenoh. It takes no list of known keys, so it only connects."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

import zenlake
from tests.support.interop_conversation import (
    COMMON_PAIRS,
    Ours,
    Pair,
    both_send,
    conversation,
    dialling,
)
from tests.support.reference_peer import ReferenceFailed, ReferenceProcess, Settings
from tests.support.waiting import until
from zenlake.api.config.opening import read_settings
from zenlake.transport.auth import Authenticator
from zenlake.transport.pubkey import PublicKey
from zenlake.transport.usrpwd import UserPassword

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("nothing_logged_as_error")]

KEY_BITS = 1024  # Smallest key that can be made here; the exchange is the same for all.
THEY_DIAL = [pair for pair in COMMON_PAIRS if not pair.we_dial]


def new_key(folder: Path, name: str) -> tuple[Path, Path]:
    """A private and a public key, in the form that eclipse-zenoh reads."""
    key = rsa.generate_private_key(65537, KEY_BITS)
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.PKCS1))
    return private, public


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, tuple[Path, Path]]:
    return {name: new_key(tmp_path, name) for name in ("ours", "theirs", "stranger")}


def shown(keys: tuple[Path, Path]) -> Settings:
    private, public = keys
    return {
        "transport/auth/pubkey/private_key_file": str(private),
        "transport/auth/pubkey/public_key_file": str(public),
    }


def test_a_public_key_has_to_belong_to_the_private_key(
    keys: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    """The reference does not compare them; it refuses text that is not a key."""
    section = {key.rpartition("/")[2]: file for key, file in shown(keys["ours"]).items()}

    def opened(public: str, form: str = "file") -> None:
        settings = {"private_key_file": section["private_key_file"], f"public_key_{form}": public}
        config = zenlake.Config()
        config.insert_json5("transport/auth/pubkey", json.dumps(settings))
        read_settings(config)

    opened(section["public_key_file"])
    opened(keys["ours"][1].read_text(), "pem")
    with pytest.raises(zenlake.ZError, match="does not belong to the private key"):
        opened(str(keys["stranger"][1]))
    with pytest.raises(zenlake.ZError, match="PEM public keys"):
        opened("garbage", "pem")
    with pytest.raises(zenlake.ZError, match="cannot be read"):
        opened(str(tmp_path / "nothing"))


@pytest.mark.parametrize("pair", THEY_DIAL, ids=str)
@pytest.mark.parametrize("password", [False, True], ids=["key", "key and password"])
def test_we_accept_a_key_that_we_know(
    reference: ReferenceProcess,
    pair: Pair,
    password: bool,
    keys: dict[str, tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    known = tmp_path / "known"
    known.write_bytes(keys["stranger"][1].read_bytes() + keys["theirs"][1].read_bytes())
    authenticators: list[Authenticator] = [PublicKey(keys["ours"][0], [known])]
    settings = shown(keys["theirs"])
    if password:
        settings |= {"transport/auth/usrpwd/user": "user", "transport/auth/usrpwd/password": "pw"}
        authenticators.append(UserPassword(dictionary={"user": b"pw"}))
    ours = Ours(pair.ours, authenticators=authenticators)
    with conversation(reference, pair, ours, settings) as (session, them):
        both_send(ours, session, them, [10] * 10)
        identities = session.agreement.identities
        assert identities["public-key"] == PublicKey(keys["theirs"][0]).fingerprint
        assert identities.get("user-password") == ("user" if password else None)


@pytest.mark.parametrize("pair", THEY_DIAL, ids=str)
def test_we_refuse_a_key_that_we_do_not_know(
    reference: ReferenceProcess, pair: Pair, keys: dict[str, tuple[Path, Path]]
) -> None:
    known = PublicKey(keys["ours"][0], [keys["theirs"][1]])
    with Ours(pair.ours, authenticators=[known]) as ours:
        (at, *_) = ours.node.listen("tcp/127.0.0.1:0")
        settings = {**shown(keys["stranger"]), "connect/timeout_ms": 0}
        with pytest.raises(ReferenceFailed):
            dialling(reference, pair.theirs, str(at), settings)
        until(lambda: ours.node.refused["GENERIC"], lambda times: times >= 1)
        assert ours.opened == []
