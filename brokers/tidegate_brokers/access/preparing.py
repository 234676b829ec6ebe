"""From a layout to files: passwords that are made once and kept, and what each broker and its RabbitMQ read at start.

    DIR/passwords/USER             kept from run to run; readable by nobody else
    DIR/BROKER/definitions/        for its RabbitMQ: accounts and rights, with hashes of passwords
    DIR/BROKER/conf.d/             for its RabbitMQ: how much memory there is, where that is given, TLS, and stamps
    DIR/BROKER/broker.toml         for its process: `tidegate head --config …`; holds passwords
    DIR/PERSON/url                 the address of the first head, with password, as clients reach it
    DIR/PERSON/url-inside          the same as brokers reach it
    DIR/SECRET/password            for something that is not RabbitMQ
    DIR/prometheus/JOB.json        for Prometheus (file_sd_configs): every process, every RabbitMQ, and whose they are
    DIR/prometheus/web.yml         for Prometheus: its login (`prometheus.py`)

Invariants: nothing is written before everything was checked, so that a wrong setting never leaves half a cluster. A
password that an operator chose has at least 12 characters and is not the user's name. No password is ever logged.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tidegate_protocol.names import BROKER_ACCOUNT_START

from ..errors import ConfigurationError
from ..settings.options import PROMETHEUS_PORTS, BrokerConfig, EdgeConfig, HeadConfig
from ..settings.reading import ENVIRONMENT_PREFIX, load_values, secret_from
from ..settings.urls import DEFAULT_PORTS, ServerUrl
from .definitions import account_definitions, exchange_definitions
from .layout import EdgePlace, HeadPlace, Layout
from .prometheus import login_files
from .roles import broker_user, link_user

PASSWORD_BYTES: Final = 24
PASSWORD_LENGTH_MIN: Final = 12
MEMORY_VARIABLE: Final = f"{ENVIRONMENT_PREFIX}RABBITMQ_MEMORY"
"""The limit of a RabbitMQ's container, as Docker writes it."""
UNITS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
STAMPING: Final = ("message_interceptors.incoming.set_header_timestamp.overwrite", "true")
"""How a head's RabbitMQ is told to stamp publications. Without overwriting, a publisher could bring a stamp of its own.
"""
MUTUAL: Final = (
    "ssl_options.verify = verify_peer",
    "ssl_options.fail_if_no_peer_cert = true",
    "auth_mechanisms.1 = EXTERNAL",
    "auth_mechanisms.2 = PLAIN",
    "ssl_cert_login_from = common_name",
)
"""How RabbitMQ knows accounts by certificates, with its plugin rabbitmq_auth_mechanism_ssl, beside passwords."""
PROMETHEUS: Final = "prometheus"
"""The folder with what Prometheus is to look at."""
PRIVATE: Final = 0o600
PUBLIC: Final = 0o644
"""RabbitMQ reads as another user; there are only hashes in it."""


def password_variable(user: str) -> str:
    """The variable that gives an account a chosen password; with `_FILE` behind it, the file that holds it."""
    return f"{ENVIRONMENT_PREFIX}PASSWORD_{user.upper().replace('-', '_')}"


def address_variable(head: str) -> str:
    """The variable that says by which address clients reach a head, where there are several."""
    return f"{ENVIRONMENT_PREFIX}ADDRESS_{head.upper().replace('-', '_')}"


class Access:
    """A layout and the passwords of everybody in it."""

    def __init__(
        self,
        layout: Layout,
        directory: Path,
        environ: Mapping[str, str],
        certificates: str | None = None,
        mutual: bool = False,
    ) -> None:
        """`certificates`: the folder in which each broker and its RabbitMQ find ca.pem, cert.pem and key.pem, by the
        same path on each machine; everything is spoken with TLS then. `mutual`: RabbitMQ takes only connections with a
        certificate of that authority, and whoever gives no password is the account that its certificate names; brokers
        find theirs in the folder broker of that folder.
        """
        if mutual and certificates is None:
            raise ConfigurationError("--mutual", "command line", "needs certificates", "give --certificates")
        self._mutual = mutual
        self._certificates = certificates
        self._layout = layout
        self._directory = directory
        self._environ = environ
        users = {account.user for place in layout.places for account in layout.accounts(place)}
        users.update(secret.name for secret in layout.secret)
        self._passwords = {user: self._password(user) for user in sorted(users)}

    def url(self, user: str, cluster: str | None = None) -> ServerUrl:
        """The address of a head for one account, as clients reach it."""
        for head in self._layout.head:
            if cluster in (None, head.cluster):
                return replace(self._address(head), user=user, password=self._passwords[user])
        known = ", ".join(head.cluster for head in self._layout.head)
        raise ConfigurationError("--cluster", "command line", f"there is no cluster {cluster}", f"known are {known}")

    def write(self, owner: int | None = None) -> list[Path]:
        """Check everything, then write everything; `owner` is the user that broker processes run as."""
        files: list[tuple[Path, str, int]] = []
        scraped: dict[str, list[dict[str, Any]]] = {"tidegate": [], "rabbitmq": []}
        for place in self._layout.places:
            values = self._head(place) if isinstance(place, HeadPlace) else self._edge(place)
            config = load_values(HeadConfig if isinstance(place, HeadPlace) else EdgeConfig, values, self._environ)
            scraped["tidegate"].append(self._scraped(place, place.process_host or place.name, config.http_port))
            scraped["rabbitmq"].append(self._scraped(place, place.host, PROMETHEUS_PORTS[self._web]))
            folder, accounts = self._directory / place.name, self._layout.accounts(place)
            first = exchange_definitions(place.vhost, accounts)
            second = account_definitions(place.vhost, accounts, self._passwords)
            files.append((folder / "definitions" / "1-exchanges.json", json.dumps(first, indent=2) + "\n", PUBLIC))
            files.append((folder / "definitions" / "2-accounts.json", json.dumps(second, indent=2) + "\n", PUBLIC))
            files.append((folder / "conf.d" / "memory.conf", self._memory(), PUBLIC))
            files.append((folder / "conf.d" / "tls.conf", self._rabbitmq_tls(), PUBLIC))
            files.append((folder / "conf.d" / "time.conf", _rabbitmq_time(config), PUBLIC))
            files.append((folder / "broker.toml", _toml(values), PRIVATE))
        for user, password in self._passwords.items():
            files.append((self._file(user), password + "\n", PRIVATE))
        for user in self._layout.people:
            inside = self._url(self._layout.head[0], user)
            files.append((self._directory / user / "url", self.url(user).reveal() + "\n", PRIVATE))
            files.append((self._directory / user / "url-inside", inside + "\n", PRIVATE))
        # Their readers run as other users; each file lies in a folder of its own, to be given to its reader alone.
        files += [
            (self._directory / secret.name / "password", self._passwords[secret.name] + "\n", PUBLIC)
            for secret in self._layout.secret
        ]
        for job, targets in scraped.items():
            text = json.dumps(targets, indent=2) + "\n"
            files.append((self._directory / PROMETHEUS / f"{job}.json", text, PUBLIC))
        login = login_files(self._passwords, self._environ, password_variable(PROMETHEUS))
        files += [(self._directory / path, text, PUBLIC) for path, text in login.items()]
        for file, text, mode in files:
            _write(file, text, mode, owner)
        return [file for file, _, _ in files]

    # Passwords

    def _file(self, user: str) -> Path:
        return self._directory / "passwords" / user

    def _password(self, user: str) -> str:
        variable = password_variable(user)
        chosen = secret_from(self._environ, variable, variable)
        if chosen is not None:
            if len(chosen) < PASSWORD_LENGTH_MIN or chosen == user:
                problem = f"is no password: it has less than {PASSWORD_LENGTH_MIN} characters, or is the user's name"
                raise ConfigurationError(variable, "environment", problem, "choose a longer one, or leave it empty")
            return chosen
        try:
            return self._file(user).read_text().strip()
        except FileNotFoundError:
            return secrets.token_urlsafe(PASSWORD_BYTES)
        except OSError as error:
            problem = f"{self._file(user)} can't be read: {error.strerror}"
            raise ConfigurationError("--out", "command line", problem, "run this as the user that wrote it") from None

    # Configurations

    def _memory(self) -> str:
        """RabbitMQ does not see every container's limit, and would fill what is not its own."""
        text = self._environ.get(MEMORY_VARIABLE, "").strip().lower()
        if not text:
            return ""
        digits, unit = text.rstrip("b").rstrip("kmg"), text.rstrip("b")[-1:]
        if not digits.isascii() or not digits.isdigit():
            problem = f"{text!r} is no amount of memory"
            raise ConfigurationError(MEMORY_VARIABLE, "environment", problem, "write it like 512m or 2g")
        return f"total_memory_available_override_value = {int(digits) * UNITS.get(unit, 1)}\n"

    def _url(self, place: HeadPlace | EdgePlace, user: str) -> str:
        scheme = "amqp" if self._certificates is None else "amqps"
        port = place.port or DEFAULT_PORTS[scheme]
        password = None if self._mutual and user.startswith(BROKER_ACCOUNT_START) else self._passwords[user]
        return ServerUrl(scheme, place.host, port, user, password, place.vhost).reveal()

    def _management(self, place: HeadPlace | EdgePlace) -> dict[str, str]:
        """RabbitMQ's HTTP API takes no certificate for an account."""
        if not self._mutual:
            return {}
        user = broker_user(place.name)
        url = ServerUrl("https", place.host, DEFAULT_PORTS["https"], user, self._passwords[user])
        return {"management_url": url.reveal()}

    def _broker_tls(self) -> dict[str, str]:
        folder = self._certificates
        if folder is None:
            return {}
        own = {"tls_cert_file": f"{folder}/broker/cert.pem", "tls_key_file": f"{folder}/broker/key.pem"}
        return {
            "tls_ca_file": f"{folder}/ca.pem",
            "http_cert_file": f"{folder}/cert.pem",
            "http_key_file": f"{folder}/key.pem",
            **(own if self._mutual else {}),
        }

    def _link_tls(self) -> dict[str, str]:
        """What a head's RabbitMQ presents to others: its own certificate. Links are known by their passwords."""
        folder = self._certificates
        return {"link_cert_file": f"{folder}/cert.pem", "link_key_file": f"{folder}/key.pem"} if self._mutual else {}

    def _rabbitmq_tls(self) -> str:
        folder = self._certificates
        if folder is None:
            return ""
        lines = ["listeners.tcp = none", f"listeners.ssl.default = {DEFAULT_PORTS['amqps']}"]
        ports = {"management.ssl": DEFAULT_PORTS["https"], "prometheus.ssl": PROMETHEUS_PORTS["https"]}
        for part in ("ssl_options", *ports):
            if part in ports:
                lines.append(f"{part}.port = {ports[part]}")
            lines += [
                f"{part}.cacertfile = {folder}/ca.pem",
                f"{part}.certfile = {folder}/cert.pem",
                f"{part}.keyfile = {folder}/key.pem",
            ]
        # Without --mutual, clients are known by their passwords.
        return "\n".join([*lines, *(MUTUAL if self._mutual else ("ssl_options.verify = verify_none",)), ""])

    @property
    def _web(self) -> str:
        return "http" if self._certificates is None else "https"

    def _scraped(self, place: HeadPlace | EdgePlace, host: str, port: int) -> dict[str, Any]:
        """A target of Prometheus, with the labels that dashboards and alerts go by."""
        head, role = (place, "head") if isinstance(place, HeadPlace) else (self._layout.head_of(place), "edge")
        labels = {"cluster": head.cluster, "broker": place.name, "role": role}
        return {"targets": [f"{host}:{port}"], "labels": labels}

    def _head(self, head: HeadPlace) -> dict[str, Any]:
        user, link = broker_user(head.name), link_user(head.name)
        return {
            "name": head.name,
            "cluster": head.cluster,
            "url": self._url(head, user),
            "client_names": "own",
            **self._broker_tls(),
            **self._link_tls(),
            **self._management(head),
            "neighbours": [
                {"name": other.name, "url": self._url(other, user), "link_url": self._url(other, link)}
                for other in self._layout.neighbours(head)
            ],
        }

    def _edge(self, edge: EdgePlace) -> dict[str, Any]:
        user, head = broker_user(edge.name), self._layout.head_of(edge)
        return {
            "name": edge.name,
            "cluster": head.cluster,
            "url": self._url(edge, user),
            "head_url": self._url(head, user),
            "link_url": self._url(edge, link_user(head.name)),
            **self._broker_tls(),
            **self._management(edge),
        }

    def _address(self, head: HeadPlace) -> ServerUrl:
        """As clients reach it: the settings of heads are the same for all, their addresses are not."""
        variable = address_variable(head.name)
        given = self._environ.get(variable)
        config = load_values(HeadConfig, self._head(head), self._environ)
        try:
            return ServerUrl.parse(given or config.publisher_address)
        except ValueError as error:
            raise ConfigurationError(variable, "environment", str(error), "correct it") from None


def _rabbitmq_time(config: BrokerConfig) -> str:
    """A head's RabbitMQ stamps what comes in, where its process is told so. An older one than 3.12 would not start."""
    stamped = isinstance(config, HeadConfig) and config.times == "checked"
    return "{} = {}\n".format(*STAMPING) if stamped else ""


def _toml(values: Mapping[str, Any]) -> str:
    # JSON's strings, numbers and lists are TOML's, too; only tables are not.
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if key != "neighbours"]
    for table in values.get("neighbours", ()):
        lines += ["", "[[neighbours]]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _write(file: Path, text: str, mode: int, owner: int | None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(file.name + ".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as stream:
        stream.write(text)
    fresh.chmod(mode)
    if owner is not None:
        os.chown(fresh, owner, owner)
    fresh.replace(file)
