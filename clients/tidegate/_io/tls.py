"""Why a certificate was refused: found in the errors that libraries wrap around it."""

from __future__ import annotations

import ssl
from typing import Final

DEPTH_MAX: Final = 20
"""Errors that wrap one another; more is a circle."""


def certificate_refusal(error: BaseException | None) -> str | None:
    """The reason, in OpenSSL's words; None if something else went wrong."""
    waiting = [error]
    for _ in range(DEPTH_MAX):
        found = waiting.pop(0) if waiting else None
        if found is None:
            continue
        if isinstance(found, ssl.SSLCertVerificationError):
            return found.verify_message
        if isinstance(found, ssl.SSLError) and "ALERT" in (found.reason or ""):
            return f"the server refused ours ({(found.reason or '').lower().replace('_', ' ')})"
        # pika keeps causes in attributes of its own.
        waiting += [found.__cause__, found.__context__, getattr(found, "exception", None)]
        waiting += [each for each in getattr(found, "exceptions", ()) if isinstance(each, BaseException)]
        waiting += [each for each in found.args if isinstance(each, BaseException)]
    return None
