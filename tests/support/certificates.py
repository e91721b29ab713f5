"""Certificates for tests: an authority, and servers and clients that it vouches for, or not.

Knows X.509; knows nothing of TLS connections. Everything ends up as PEM files in one folder.
"""

import base64
import ipaddress
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOOPBACK = ("localhost", "127.0.0.1", "::1")
DAY = timedelta(days=1)
NOW = datetime.now(UTC).replace(microsecond=0)
VALID = (NOW - DAY, NOW + 30 * DAY)
EXPIRED = (NOW - 30 * DAY, NOW - DAY)
NOT_YET_VALID = (NOW + DAY, NOW + 30 * DAY)
Validity = tuple[datetime, datetime]


@dataclass(frozen=True)
class Identity:
    """A certificate (with what is between it and the root) and its private key, as files."""

    certificate: str
    key: str
    not_after: float
    "UNIX seconds."

    @property
    def certificate_base64(self) -> str:
        return in_base64(self.certificate)

    @property
    def key_base64(self) -> str:
        return in_base64(self.key)


def in_base64(path: str) -> str:
    """The content of a file as the `_base64` options take it."""
    return base64.b64encode(Path(path).read_bytes()).decode()


class Authority:
    """A certificate authority whose files are in `folder`; `above` makes it an intermediate."""

    def __init__(self, folder: Path, name: str = "ca", above: "Authority | None" = None) -> None:
        self.folder = folder
        self._above = above
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(f"zenlake test {name}")
        builder = _builder(self._name, self._key, VALID).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        builder = builder.add_extension(
            x509.KeyUsage(False, False, False, False, False, True, True, False, False),
            critical=True,
        )
        self._certificate = above.sign(builder) if above else sign_self(builder, self._key)
        self.certificate = _write(folder / f"{name}.pem", [self._certificate])

    def sign(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        issuer = self._key.public_key()
        return (
            builder.issuer_name(self._name)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def chain(self) -> list[x509.Certificate]:
        """Return the certificates that a server sends after its own: all below the root."""
        return [self._certificate, *self._above.chain] if self._above else []

    def server(
        self,
        names: tuple[str, ...] = LOOPBACK,
        validity: Validity = VALID,
        common_name: str | None = "zenlake test server",
        file: str = "server",
    ) -> Identity:
        """A server with `names`: host names and IP addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(common_name), key, validity).add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
        )
        builder = _for(builder, ExtendedKeyUsageOID.SERVER_AUTH)
        return self._identity(file, key, builder)

    def client(
        self,
        common_name: str | None = "zenlake test client",
        validity: Validity = VALID,
        file: str = "client",
    ) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(common_name), key, validity)
        return self._identity(file, key, _for(builder, ExtendedKeyUsageOID.CLIENT_AUTH))

    def _identity(
        self, file: str, key: ec.EllipticCurvePrivateKey, builder: x509.CertificateBuilder
    ) -> Identity:
        return _save(self.folder, file, key, [self.sign(builder), *self.chain])


def self_signed_server(folder: Path, names: tuple[str, ...] = LOOPBACK) -> Identity:
    """A server that vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name("zenlake self-signed"), key, VALID).add_extension(
        x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
    )
    return _save(folder, "self_signed", key, [sign_self(builder, key)])


def sign_self(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    subject = builder._subject_name  # a builder does not tell what it was given
    assert subject is not None
    return builder.issuer_name(subject).sign(key, hashes.SHA256())


def encrypted_copy(identity: Identity, password: bytes) -> str:
    """The path of the same private key, behind a password."""
    key = serialization.load_pem_private_key(Path(identity.key).read_bytes(), None)
    path = Path(identity.key + ".encrypted")
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password),
        )
    )
    return str(path)


def _name(common_name: str | None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "zenlake")]
    if common_name is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid names are made here too
            name = x509.NameAttribute(NameOID.COMMON_NAME, common_name, _validate=False)
        attributes.append(name)
    return x509.Name(attributes)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, validity: Validity
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity[0])
        .not_valid_after(validity[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )


def _for(
    builder: x509.CertificateBuilder, purpose: x509.ObjectIdentifier
) -> x509.CertificateBuilder:
    return builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    ).add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)


def _save(
    folder: Path, file: str, key: ec.EllipticCurvePrivateKey, chain: list[x509.Certificate]
) -> Identity:
    key_path = folder / f"{file}_key.pem"
    key_path.touch(mode=0o600)
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    not_after = chain[0].not_valid_after_utc.timestamp()
    return Identity(_write(folder / f"{file}.pem", chain), str(key_path), not_after)


def _write(path: Path, certificates: list[x509.Certificate]) -> str:
    path.write_bytes(
        b"".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates)
    )
    return str(path)
