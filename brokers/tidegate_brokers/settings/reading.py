"""Reading a configuration: flags over environment over file over default, with errors that name the option.

A variable may name a file instead, with `_FILE` behind its name: secrets stay out of the environment that way. Each
value keeps its source, so that an error says where to look. Values of addresses are never repeated in
an error, because they hold passwords. Also renders the reference of all options for
`docs/configuration.md`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Final, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from ..errors import ConfigurationError
from .balancing import BalancingOptions
from .options import BrokerConfig, EdgeConfig, HeadConfig, Neighbour
from .urls import ServerUrl

ENVIRONMENT_PREFIX: Final = "TIDEGATE_"
"""What every variable of ours starts with."""
FILE_SUFFIX: Final = "_FILE"
"""Behind the name of a variable: its value is in that file."""
CONFIG_BYTES_MAX: Final = 1 << 20
BESIDE_THE_FILE: Final = ("rules_file",)
"""Options in a file whose relative paths start at its folder."""

C = TypeVar("C", bound=BrokerConfig)


def load_config(
    model: type[C],
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> C:
    """Build `model` from all sources, or raise `ConfigurationError` for the first option that is wrong."""
    values = {} if file is None else _read_file(file)
    for option in BESIDE_THE_FILE:
        if file is not None and isinstance(path := values.get(option), str):
            values[option] = str(file.parent / path)
    return load_values(model, values, environ or {}, flags, str(file))


def load_values(
    model: type[C],
    given: Mapping[str, object],
    environ: Mapping[str, str],
    flags: Mapping[str, object] | None = None,
    place: str = "given",
) -> C:
    """The same with what a file would hold."""
    values = dict(given)
    sources = {option: f"{place}: {option}" for option in values}
    for option, info in model.model_fields.items():
        variable = variable_name(model, option)
        text = secret_from(environ, variable, option)
        if text is not None:
            values[option], sources[option] = _from_text(option, info, text, variable), f"variable {variable}"
    for option, value in (flags or {}).items():
        if value is not None:
            values[option], sources[option] = value, f"flag {flag_name(option)}"
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise _explain(model, first, sources) from None


def secret_from(environ: Mapping[str, str], variable: str, option: str) -> str | None:
    """What a variable holds, or the file that `<variable>_FILE` names; None for neither. Empty counts as not there."""
    text, file = environ.get(variable) or None, environ.get(variable + FILE_SUFFIX) or None
    if file is None:
        return text
    source = f"variable {variable}{FILE_SUFFIX}"
    if text is not None:
        raise ConfigurationError(option, source, f"is given beside {variable}", "keep one of them")
    try:
        with open(file) as stream:
            content = stream.read(CONFIG_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigurationError(option, source, f"{file} can't be read: {reason}", "correct it") from None
    if not content:
        raise ConfigurationError(option, source, f"{file} is empty", "write the value into it")
    return content


def flag_name(option: str) -> str:
    """How an option is spelled on the command line."""
    return "--" + option.replace("_", "-")


def variable_name(model: type[BaseModel], option: str) -> str:
    """The environment variable of an option.

    The role is part of it, because TIDEGATE_URL is the address that clients use: an edge started in the same shell
    would take the head's RabbitMQ for its own.
    """
    return f"{ENVIRONMENT_PREFIX}{model.__name__.removesuffix('Config').upper()}_{option.upper()}"


def _read_file(file: Path) -> dict[str, object]:
    try:
        with file.open("rb") as stream:
            content = stream.read(CONFIG_BYTES_MAX + 1)
        if len(content) > CONFIG_BYTES_MAX:
            raise ConfigurationError("--config", str(file), f"is over {CONFIG_BYTES_MAX} bytes", "name the right file")
        return tomllib.loads(content.decode())
    except OSError as error:
        problem = f"can't be read: {error.strerror}"
        raise ConfigurationError("--config", str(file), problem, "name a file that can be read") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError("--config", str(file), f"is not TOML: {error}", "correct the file") from None


def _is_nested(info: FieldInfo) -> bool:
    return get_origin(info.annotation) is tuple


def _from_text(option: str, info: FieldInfo, text: str, variable: str) -> object:
    if not _is_nested(info):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg} at character {error.pos}"
        raise ConfigurationError(option, f"variable {variable}", problem, "write the list as JSON") from None


def _explain(model: type[BaseModel], error: ErrorDetails, sources: Mapping[str, str]) -> ConfigurationError:
    message = error["msg"].removeprefix("Value error, ")
    location = error["loc"]
    if not location:
        option, _, problem = message.partition(": ")
        return ConfigurationError(option, sources.get(option, "default"), problem, "correct it")
    option = ".".join(str(part) for part in location)
    root = str(location[0])
    source = sources.get(root, "not given")
    if error["type"] == "missing" and len(location) == 1:
        remedy = f"set {root} in the file, {variable_name(model, root)} or {flag_name(root)}"
        return ConfigurationError(option, source, "is required", remedy)
    if error["type"] == "extra_forbidden":
        known = ", ".join(Neighbour.model_fields if len(location) > 1 else model.model_fields)
        return ConfigurationError(option, source, "is not a known option", f"known are {known}")
    info = model.model_fields.get(root)
    remedy = f"it is: {info.description}" if info is not None else "correct it"
    return ConfigurationError(option, source, message[:1].lower() + message[1:], remedy)


# The reference of options


def render_reference() -> str:
    """All options as Markdown; `docs/configuration.md` is exactly this."""
    parts = [
        "# Configuration",
        "",
        "Options of `tidegate head` and `tidegate edge`. This page is made from the code\n"
        "(`tidegate_brokers.settings.reading.render_reference`).",
        "",
        "An option is taken from the first of: a flag (`--option-name`), the environment\n"
        "(`TIDEGATE_HEAD_OPTION_NAME` or `TIDEGATE_EDGE_OPTION_NAME`, lists as JSON; with `_FILE` behind the name,\n"
        "the file that holds the value; an empty variable counts as not set), the TOML file given with `--config`\n"
        "(`option_name = …`), its default. Addresses are URLs `amqp://user:password@host:port/vhost`; passwords never\n"
        "appear in logs, errors or metrics, and one that anybody could guess is refused unless the address is on the\n"
        "loopback.",
    ]
    for title, model in (
        ("Head", HeadConfig),
        ("Edge", EdgeConfig),
        ("Entries of `neighbours`", Neighbour),
    ):
        shared = BalancingOptions.model_fields if issubclass(model, BalancingOptions) else {}
        parts += ["", f"## {title}", "", *_table(model, frozenset(shared))]
    parts += [
        "",
        "## Load management, heads and edges",
        "",
        "Give all brokers of a cluster the same. The topology of an embedded cluster has the table `[balancing]`.",
        "",
        *_table(BalancingOptions),
    ]
    return "\n".join(parts) + "\n"


def _table(model: type[BaseModel], without: frozenset[str] = frozenset()) -> list[str]:
    rows = ["| option | type | unit | default | range | meaning |", "| --- | --- | --- | --- | --- | --- |"]
    for option, info in model.model_fields.items():
        if option in without:
            continue
        extra = info.json_schema_extra
        unit = str(extra.get("unit", "")) if isinstance(extra, dict) else ""
        cells = (f"`{option}`", _type(info), unit, _default(info), _range(info), info.description or "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _type(info: FieldInfo) -> str:
    annotation: Any = info.annotation
    options = [part for part in get_args(annotation) if part is not NoneType] or [annotation]
    if all(isinstance(option, str) for option in options):
        return " or ".join(f"`{option}`" for option in options)
    if _is_nested(info):
        return "list"
    if ServerUrl in options or any(ServerUrl in get_args(option) for option in options):
        return "URL"
    return {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}[options[0]]


def _default(info: FieldInfo) -> str:
    if info.default is PydanticUndefined:
        return "required"
    if info.default is None:
        return "none"
    return f"`{json.dumps(info.default)}`"


def _range(info: FieldInfo) -> str:
    bounds = []
    for item in info.metadata:
        for attribute, sign in (
            ("gt", ">"),
            ("ge", "≥"),
            ("lt", "<"),
            ("le", "≤"),
            ("max_length", "at most"),
        ):
            value = getattr(item, attribute, None)
            if value is not None:
                bounds.append(f"{sign} {value}")
    return ", ".join(bounds)
