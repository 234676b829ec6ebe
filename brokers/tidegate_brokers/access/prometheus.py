"""A login for Prometheus: what it, its own check, and Grafana read.

    DIR/prometheus/web.yml               for Prometheus (--web.config.file): who may ask; only the hash of a password
    DIR/prometheus/client.yml            for whoever asks it from within its container
    DIR/grafana/prometheus-password      for Grafana, which asks it for its dashboards

There are such files where a layout has a secret named `prometheus`. Where ports are bound to the loopback alone
`web.yml` asks nobody for a login: who is on this machine is trusted.

Must not know: accounts of RabbitMQ.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from typing import Final

import bcrypt

from ..errors import ConfigurationError
from ..settings.reading import ENVIRONMENT_PREFIX

SECRET: Final = "prometheus"
GRAFANA: Final = "grafana"
USER: Final = "tidegate"
BIND_VARIABLE: Final = f"{ENVIRONMENT_PREFIX}BIND"
"""The address that ports are bound to, as in .env; not given: it may be any."""
PASSWORD_BYTES_MAX: Final = 72
"""bcrypt takes no more, and Prometheus knows nothing else."""
PASSWORD_FILE: Final = "/access/password"


def only_here(address: str) -> bool:
    """Whether an address is of the loopback interface."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"


def login_files(passwords: Mapping[str, str], environ: Mapping[str, str], variable: str) -> dict[str, str]:
    """Paths and texts; none where there is no such secret. `variable` may have set the password."""
    password = passwords.get(SECRET)
    if password is None:
        return {}
    if len(password.encode()) > PASSWORD_BYTES_MAX or "$" in password:
        problem = f"is longer than {PASSWORD_BYTES_MAX} bytes, or holds a $, which Grafana takes for a variable"
        raise ConfigurationError(variable, "environment", problem, "choose another one, or leave it empty")
    web: dict[str, object] = {}
    if not only_here(environ.get(BIND_VARIABLE, "")):
        web = {"basic_auth_users": {USER: bcrypt.hashpw(password.encode(), bcrypt.gensalt(10)).decode()}}
    client = {"basic_auth": {"username": USER, "password_file": PASSWORD_FILE}}
    # JSON is YAML, too.
    files = {f"{SECRET}/web.yml": json.dumps(web) + "\n", f"{SECRET}/client.yml": json.dumps(client) + "\n"}
    if GRAFANA in passwords:
        files[f"{GRAFANA}/prometheus-password"] = password + "\n"
    return files
