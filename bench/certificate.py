"""A certificate that vouches for itself, for links of the benchmark that need one."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "127.0.0.1"
DAYS = timedelta(days=1)


def tls_options(folder: Path) -> dict[str, str]:
    """Write a certificate and its key into `folder`; return the options of both sides."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "zenlake bench")])
    now = datetime.now(UTC)
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - DAYS)
        .not_valid_after(now + DAYS)
        .add_extension(host, critical=False)
        .sign(key, hashes.SHA256())
    )
    shown, secret = folder / "certificate.pem", folder / "key.pem"
    shown.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return {
        "root_ca_certificate": str(shown),
        "listen_certificate": str(shown),
        "listen_private_key": str(secret),
    }
