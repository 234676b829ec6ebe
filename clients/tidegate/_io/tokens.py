"""Tokens in place of passwords: asked for when a connection is opened, and renewed on connections that stay open.

RabbitMQ with its plugin for OAuth 2 closes a connection when its token expires, unless it was given a newer one before
(Connection.UpdateSecret). One thread per client asks for the newer one in time and hands it to all its connections, so
that an application's provider may take its time and delays neither a delivery nor an event loop.

Invariants: the thread lives only while there are connections. A provider that fails is asked again every `RETRY_S`; the
connections go on until their token expires, and are opened again with whatever the provider gives then. A token is
never logged. Nothing here checks a token: that is RabbitMQ's business; only its expiry is read.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from .._core.config import Address
from .._core.errors import ConnectionFailed, InvalidValue

logger = logging.getLogger(__name__)

RENEW_SHARE: Final = 0.6
"""Of what is left of a token's life: then the next one is asked for."""
RENEW_S_MIN: Final = 0.5
RENEW_S_DEFAULT: Final = 300.0
"""For tokens that do not say when they expire."""
RETRY_S: Final = 2.0
REASON: Final = "token renewed"
"""What RabbitMQ is told."""

Provider = Callable[[], str]


class Holder(Protocol):
    """A connection that was opened with a token."""

    @property
    def usable(self) -> bool: ...

    def renew(self, token: str) -> None:
        """Give RabbitMQ a newer token; called in the thread of the tokens."""


class Tokens:
    """The tokens of one client, from its provider to its connections."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._changed = threading.Condition()
        self._token = ""
        self._renew_at_s = 0.0
        self._holders: list[Holder] = []
        self._thread: threading.Thread | None = None

    def current(self) -> str:
        """A token that is good for a while; asks the provider if there is none. May block."""
        with self._changed:
            if time.time() < self._renew_at_s:
                return self._token
        return self._fetch()

    def hold(self, holder: Holder) -> None:
        """Renew the token of this connection until it is closed."""
        with self._changed:
            self._holders = [one for one in self._holders if one.usable] + [holder]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tidegate tokens", daemon=True)
                self._thread.start()

    def _fetch(self) -> str:
        token = self._provider()
        if not isinstance(token, str) or not token:
            raise InvalidValue("token", type(token).__name__, "is no token", "have the provider return text")
        expires_s = expiry_s(token)
        now_s = time.time()
        left_s = RENEW_S_DEFAULT if expires_s is None else (expires_s - now_s) * RENEW_SHARE
        with self._changed:
            self._token, self._renew_at_s = token, now_s + max(left_s, RENEW_S_MIN)
        return token

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(max(self._renew_at_s - time.time(), 0.0))
                self._holders = [one for one in self._holders if one.usable]
                if not self._holders:
                    self._thread = None
                    return
            try:
                token = self._fetch()
            except Exception as error:  # an application's code
                logger.warning("cannot renew a token; asks again in %g s: %r", RETRY_S, error)
                with self._changed:
                    self._renew_at_s = time.time() + RETRY_S
                continue
            for holder in list(self._holders):
                holder.renew(token)


def expiry_s(token: str) -> float | None:
    """When a JSON Web Token expires, in seconds since 1970; None for a token that does not say so."""
    payload = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, binascii.Error):
        return None
    expires_s = claims.get("exp") if isinstance(claims, dict) else None
    return float(expires_s) if isinstance(expires_s, int | float) and not isinstance(expires_s, bool) else None


def authenticated(address: Address, token: Provider | None) -> Address:
    """The address, to be entered with tokens where a provider or the option `tokenfile` gives some."""
    file = address.tls.get("tokenfile")
    if token is None and file is not None:
        return replace(address, tokens=Tokens(lambda: Path(file).read_text().strip()))
    return address if token is None else replace(address, tokens=Tokens(token))


def secret_of(address: Address) -> str:
    """The password, or the token of the moment. May block, and raises `ConnectionFailed` if there is none."""
    if address.tokens is None:
        return address.password
    try:
        return address.tokens.current()
    except Exception as error:  # an application's code
        raise ConnectionFailed(str(address), f"there is no token: {error!r}") from error
