"""Errors of the broker processes.

    BrokerError                     root; `.exit_code` is what a process ends with when it meets one at start
    ├── ConfigurationError          an option that does not fit         (.option, .source, .problem, .remedy)
    ├── PortTaken                   the HTTP port is in use             (.host, .port)
    ├── AlreadyRunning              another process of that name runs   (.broker)
    ├── RabbitError                 something about a RabbitMQ          (.where)
    │   ├── RabbitUnreachable           refused, timed out, wrong host or port: may pass
    │   ├── RabbitDenied                wrong user or password
    │   ├── RabbitForbidden             the user lacks a right, or the virtual host is not there
    │   ├── RabbitUntrusted             its certificate, or ours, was refused
    │   ├── RabbitTooOld                below the oldest supported version   (.version)
    │   ├── PluginMissing               a plugin is not enabled              (.plugin)
    │   ├── RabbitBadAnswer             an answer that makes no sense here
    │   └── TelemetryUnavailable        no stream that telemetry could be written to; concerns nothing else
    └── (TopologyError and EmbeddedError: their tree is drawn at the end of this file)

Every message says what is wrong and what to do. None holds a password: `where` is a redacted address.
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
        remedy = "choose another http_port, or 0 for any free one"
        super().__init__(f"cannot listen on {host}:{port} ({problem}); {remedy}")


class AlreadyRunning(BrokerError):
    """Another process holds the exclusive control queue of this broker."""

    exit_code = EX_UNAVAILABLE

    def __init__(self, role: str, broker: str, where: str) -> None:
        self.broker = broker
        super().__init__(
            f"another {role} process named {broker} runs on {where}; stop it, or give this one another name"
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


class RabbitUntrusted(RabbitError):
    """A certificate was refused."""

    exit_code = EX_CONFIG

    def __init__(self, where: str, reason: str) -> None:
        remedy = "check tls_ca_file, and that the certificate is for the name in the URL and still valid"
        super().__init__(where, f"the certificate was refused: {reason}", remedy)


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
        remedy = f"run: rabbitmq-plugins enable {plugin}"
        super().__init__(where, f"the plugin {plugin} is not enabled", remedy)


class RabbitBadAnswer(RabbitError):
    """An answer that makes no sense here, e.g. from another kind of server."""


class TelemetryUnavailable(RabbitError):
    """There is no stream that telemetry could be written to, or read from."""


# Topology and embedded cluster
#
#     BrokerError
#     ├── TopologyError               a topology that does not fit         (.source, .place, .problem, .remedy)
#     └── EmbeddedError               an embedded cluster that can't run   (.problem, .remedy, .logs)
#         ├── RabbitNotInstalled          no RabbitMQ, or one without a plugin it should come with
#         ├── ClientPortTaken             a fixed port of the topology is in use     (.broker, .port)
#         ├── ChildDied                   a child process ended while starting       (.child, .tail)
#         ├── StartTimedOut               a child process did not become ready       (.child, .waited_s, .tail)
#         ├── GuardianLost                the guardian of the launch ended or refused
#         └── ConditionerRefused          a link conditioner refused a command       (.broker)


class TopologyError(BrokerError):
    """A topology that can't be built."""

    exit_code = EX_CONFIG

    def __init__(self, source: str, place: str, problem: str, remedy: str) -> None:
        self.source = source
        self.place = place
        self.problem = problem
        self.remedy = remedy
        where = f"{source}, {place}" if place else source
        super().__init__(f"topology {where}: {problem}; {remedy}")


class EmbeddedError(BrokerError):
    """An embedded cluster that can't start or go on. `logs` is the directory that was kept, if one was."""

    exit_code = EX_UNAVAILABLE

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy
        self.logs: str | None = None
        super().__init__(problem, remedy)

    def __str__(self) -> str:
        kept = f" (logs are kept in {self.logs})" if self.logs else ""
        return f"{self.problem}; {self.remedy}{kept}"


class RabbitNotInstalled(EmbeddedError):
    """No RabbitMQ on this machine, or one that lacks a plugin of the standard distribution."""

    exit_code = EX_CONFIG

    def __init__(self, problem: str) -> None:
        super().__init__(problem, "run 'make setup', or install it with: apt-get install rabbitmq-server")


class ClientPortTaken(EmbeddedError):
    """A fixed port that the topology asks for is in use."""

    exit_code = EX_CONFIG

    def __init__(self, broker: str, port: int, problem: str) -> None:
        self.broker = broker
        self.port = port
        super().__init__(
            f"port {port} of broker {broker} can't be used ({problem})",
            "choose another port in the topology, or leave it out for a free one",
        )


class ChildDied(EmbeddedError):
    """A RabbitMQ node, a broker process or a link conditioner that ended while it was starting."""

    def __init__(self, child: str, code: int, tail: str) -> None:
        self.child = child
        self.tail = tail
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        super().__init__(f"{child} {how} while starting. Its last words:\n{tail}\n", "read its log")


class StartTimedOut(EmbeddedError):
    """A child process that runs but does not become ready."""

    def __init__(self, child: str, waited_s: float, tail: str) -> None:
        self.child = child
        self.waited_s = waited_s
        self.tail = tail
        super().__init__(
            f"{child} was not ready after {waited_s:g} s. Its last words:\n{tail}\n",
            "read its log, and try again on a less busy machine",
        )


class GuardianLost(EmbeddedError):
    """The process that owns all others of a launch ended, or could not do what it was asked."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the guardian of the embedded cluster {problem}", "start the cluster again")


class ConditionerRefused(EmbeddedError):
    """A link conditioner that did not understand a command."""

    def __init__(self, broker: str, problem: str) -> None:
        self.broker = broker
        super().__init__(f"the link conditioner of {broker} refused: {problem}", "correct the command")
