"""Certificates by their paths: which authority to trust, and which certificate to present.

Invariants: a server's certificate is always checked, and so is that it is for the name in the address; no option
switches that off. AMQP connections read the files when they are opened, HTTP clients and servers when the process
starts.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from ..errors import ConfigurationError

SYSTEM_AUTHORITIES: Final = "/etc/ssl/certs/ca-certificates.crt"
"""Where Debian, and the images made from it, keep the authorities that everybody trusts."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of certificates, in PEM form. None: the system's authorities, no certificate of our own."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def context(self) -> ssl.SSLContext:
        """For connections that we open; raise `ConfigurationError` where a file is of no use."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise _useless("tls_ca_file", self.ca_file, error) from None
        if self.cert_file is not None:
            _load(context, self.cert_file, self.key_file, "tls_cert_file")
        return context

    def server_context(self) -> ssl.SSLContext:
        """For connections that others open to us."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        assert self.cert_file is not None
        _load(context, self.cert_file, self.key_file, "http_cert_file")
        return context


def _load(context: ssl.SSLContext, cert_file: str, key_file: str | None, option: str) -> None:
    try:
        context.load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as error:
        raise _useless(option, cert_file, error) from None


def _useless(option: str, file: str | None, error: Exception) -> ConfigurationError:
    reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
    return ConfigurationError(option, "configuration", f"{file} can't be used: {reason}", "name a readable PEM file")


def refusal(error: BaseException | None) -> str | None:
    """Why a certificate was refused, if that is what went wrong, however deep it is wrapped."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message
        if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
            return f"the server refused ours ({(error.reason or '').lower().replace('_', ' ')})"
        error = error.__cause__ or error.__context__
    return None


def shovel_options(host: str, ca_file: str, cert_file: str | None = None, key_file: str | None = None) -> str:
    """What makes RabbitMQ itself check the certificate of where it forwards to, and present one of its own; the paths
    are on its own machine.
    """
    options = {"cacertfile": ca_file, "certfile": cert_file, "keyfile": key_file or cert_file}
    given = options if cert_file is not None else {"cacertfile": ca_file}
    paths = "".join(f"&{option}={quote(path or '', safe='/')}" for option, path in given.items())
    return f"{paths}&verify=verify_peer&server_name_indication={quote(host, safe='')}"
