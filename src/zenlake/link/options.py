"""Link options: certificates and keys, which do not belong into an endpoint.

Holds values only; the link reads and checks the files.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MATERIAL = (
    "root_ca_certificate",
    "listen_private_key",
    "listen_certificate",
    "connect_private_key",
    "connect_certificate",
)
SWITCHES = ("enable_mtls", "verify_name_on_connect", "close_link_on_expiration")


@dataclass(frozen=True)
class TlsOptions:
    """Certificates and keys: each a file path, or (`_base64`) the PEM text itself in base64."""

    root_ca_certificate: str | None = None
    listen_private_key: str | None = None
    listen_certificate: str | None = None
    connect_private_key: str | None = None
    connect_certificate: str | None = None
    root_ca_certificate_base64: str | None = None
    listen_private_key_base64: str | None = field(default=None, repr=False)
    listen_certificate_base64: str | None = None
    connect_private_key_base64: str | None = field(default=None, repr=False)
    connect_certificate_base64: str | None = None
    enable_mtls: bool = False
    verify_name_on_connect: bool = True
    close_link_on_expiration: bool = False


@dataclass(frozen=True)
class LinkOptions:
    """The options of every link that one node opens or accepts."""

    tls: TlsOptions | None = None
