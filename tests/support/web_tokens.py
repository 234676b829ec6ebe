"""JSON Web Tokens for tests, signed by OpenSSL with a key made for them."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

RESOURCE = "tidegate"


@dataclass(frozen=True, slots=True)
class Issuer:
    """Who signs tokens: an RSA key, whose public half RabbitMQ is given."""

    directory: Path

    @property
    def private(self) -> Path:
        return self.directory / "issuer.key"

    @property
    def public(self) -> Path:
        return self.directory / "issuer.pem"

    def make(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        _openssl("genrsa", "-out", str(self.private), "2048")
        _openssl("rsa", "-in", str(self.private), "-pubout", "-out", str(self.public))
        self.public.chmod(0o644)

    def token(self, user: str, life_s: float, scopes: tuple[str, ...]) -> str:
        """A token for an account, good for so many seconds."""
        claims = {
            "sub": user,
            "aud": [RESOURCE],
            "exp": round(time.time() + life_s),
            "scope": [f"{RESOURCE}.{scope}" for scope in scopes],
        }
        header = {"alg": "RS256", "typ": "JWT", "kid": "key-1"}
        signed = f"{_part(header)}.{_part(claims)}"
        signature = subprocess.run(
            ["openssl", "dgst", "-sha256", "-sign", str(self.private)],
            input=signed.encode(),
            capture_output=True,
            check=True,
        ).stdout
        return f"{signed}.{_encoded(signature)}"


def _part(value: object) -> str:
    return _encoded(json.dumps(value).encode())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], capture_output=True, check=True)
