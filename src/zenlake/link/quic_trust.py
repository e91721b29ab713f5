"""Trust of QUIC links: whether a peer's certificates are admitted, as OpenSSL decides it for TLS.

Knows authorities, purposes and names. Does not know connections: `aioquic` has checked by then that
the peer has the private key.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence

import service_identity
from aioquic.tls import AlertDescription, load_pem_x509_certificates
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from OpenSSL import crypto
from service_identity import cryptography as names

from zenlake.link.tls import OTHER_NAME_ADVICE, Pem

# Codes of x509_vfy.h, and what the peer is told; any other one is a bad certificate.
ALERTS = {
    **dict.fromkeys((9, 10), AlertDescription.certificate_expired),
    **dict.fromkeys((2, 18, 19, 20, 21), AlertDescription.unknown_ca),
}


class Untrusted(Exception):
    """Reason why certificates are refused, and the alert for the peer."""

    def __init__(self, why: str, alert: AlertDescription) -> None:
        super().__init__(f"its certificate is refused: {why}")
        self.alert = alert


class Trust:
    """Authorities that one side trusts, and what the peer has to be."""

    def __init__(self, roots: Pem | None, *, of_servers: bool, name: str | None = None) -> None:
        """`roots`: None for those of the system. `name`: of the server; None: any.

        crypto.Error: the system has none, or they cannot be read.
        """
        self._purpose = (
            ExtendedKeyUsageOID.SERVER_AUTH if of_servers else ExtendedKeyUsageOID.CLIENT_AUTH
        )
        self._name = name
        self._store = crypto.X509Store()
        self._store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)
        if roots is None:
            system = ssl.get_default_verify_paths()
            self._store.load_locations(system.cafile, system.capath)
        else:
            for root in load_pem_x509_certificates(roots.content):
                self._store.add_cert(crypto.X509.from_cryptography(root))

    def check(self, certificates: Sequence[x509.Certificate]) -> None:
        """Check a certificate, and those between it and an authority. Untrusted: it is refused."""
        first, *others = map(crypto.X509.from_cryptography, certificates)
        try:
            crypto.X509StoreContext(self._store, first, others).verify_certificate()
        except crypto.X509StoreContextError as error:
            alert = ALERTS.get(error.errors[0], AlertDescription.bad_certificate)
            raise Untrusted(str(error), alert) from None
        try:
            self._check_purpose(certificates[0])
            self._check_name(certificates[0])
        except ValueError:  # Extensions are parsed when they are first asked for.
            why = "its extensions are damaged"
            raise Untrusted(why, AlertDescription.bad_certificate) from None

    def _check_purpose(self, certificate: x509.Certificate) -> None:
        try:
            purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except x509.ExtensionNotFound:
            return
        if self._purpose not in purposes:
            why = "unsuitable certificate purpose"
            raise Untrusted(why, AlertDescription.unsupported_certificate)

    def _check_name(self, certificate: x509.Certificate) -> None:
        if self._name is None:
            return
        try:
            if _is_address(self._name):
                names.verify_certificate_ip_address(certificate, self._name)
            else:
                names.verify_certificate_hostname(certificate, self._name)
        except (service_identity.CertificateError, service_identity.VerificationError):
            why = f"the certificate is not valid for {self._name!r}{OTHER_NAME_ADVICE}"
            raise Untrusted(why, AlertDescription.bad_certificate) from None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
