"""Errors of the broker processes.

    BrokerError                     root; `.exit_code` is what a process ends with when it meets one at start
    ├── ConfigurationError          an option that does not fit         (.option, .source, .problem, .remedy)
    ├── PortTaken                   the HTTP port is in use             (.host, .port)
    ├── AlreadyRunning              another process of that name runs   (.broker)
    ├── RabbitError                 something about a RabbitMQ          (.where)
    │   ├── RabbitUnreachable           refused, timed out, wrong host or port: may pass
    │   ├── RabbitDenied                wrong user or password
    │   ├── RabbitForbidden             the user lacks a right, or the virtual host is not there
    │   ├── RabbitTooOld                below the oldest supported version   (.version)
    │   ├── PluginMissing               a plugin is not enabled              (.plugin)
    │   └── RabbitBadAnswer             an answer that makes no sense here
    └── (TopologyError and others of the embedded cluster are at the end of this file)

Every message says what is wrong and what to do, and none of them holds a password: `where` is a redacted address.
"""

from __future__ import annotations

from typing import ClassVar, Final

EX_UNAVAILABLE: Final = 69
EX_SOFTWARE: Final = 70
EX_NOPERM: Final = 77
EX_CONFIG: Final = 78


class BrokerError(Exception):
    """Root of this package's errors."""

    exit_code: ClassVar[int] = EX_SOFTWARE


class ConfigurationError(BrokerError):
    """An option that is missing, unknown or out of range."""

    exit_code = EX_CONFIG

    def __init__(self, option: str, source: str, problem: str, remedy: str) -> None:
        self.option = option
        self.source = source
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"option {option} ({source}): {problem}; {remedy}")


class PortTaken(BrokerError):
    """The address for /healthz, /readyz and /metrics is in use."""

    exit_code = EX_CONFIG

    def __init__(self, host: str, port: int, problem: str) -> None:
        self.host = host
        self.port = port
        super().__init__(f"cannot listen on {host}:{port} ({problem}); choose another http_port, or 0 for any free one")


class AlreadyRunning(BrokerError):
    """Another process holds the exclusive control queue of this broker."""

    exit_code = EX_UNAVAILABLE

    def __init__(self, role: str, broker: str, where: str) -> None:
        self.broker = broker
        super().__init__(
            f"another {role} process named {broker} runs on {where}; stop it, or give this one a name of its own"
        )


class RabbitError(BrokerError):
    """Something about a RabbitMQ, at the redacted address `where`."""

    exit_code = EX_UNAVAILABLE

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        self.where = where
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"RabbitMQ at {where}: {problem}; {remedy}")


class RabbitUnreachable(RabbitError):
    """Refused, timed out, or nothing of the kind there. May pass: the runtime tries again."""


class RabbitDenied(RabbitError):
    """Wrong user or password."""

    exit_code = EX_NOPERM

    def __init__(self, where: str) -> None:
        super().__init__(where, "the user or password is wrong", "correct the credentials in the URL")


class RabbitForbidden(RabbitError):
    """The user lacks a right, or the virtual host does not exist."""

    exit_code = EX_NOPERM


class RabbitTooOld(RabbitError):
    """Below the oldest supported version."""

    exit_code = EX_CONFIG

    def __init__(self, where: str, version: str, minimum: str) -> None:
        self.version = version
        super().__init__(where, f"version {version} is too old", f"use RabbitMQ {minimum} or newer")


class PluginMissing(RabbitError):
    """A plugin that the data plane needs is not enabled."""

    exit_code = EX_CONFIG

    def __init__(self, where: str, plugin: str) -> None:
        self.plugin = plugin
        super().__init__(where, f"the plugin {plugin} is not enabled", f"run: rabbitmq-plugins enable {plugin}")


class RabbitBadAnswer(RabbitError):
    """An answer that makes no sense here, e.g. from another kind of server."""
