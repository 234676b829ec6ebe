"""Command lines of the broker processes, made from their configuration models: each option is described once."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from tidegate_brokers.observe.logs import set_up_logging
from tidegate_brokers.process import run_until_signalled
from tidegate_brokers.settings.options import BrokerConfig
from tidegate_brokers.settings.reading import flag_name, load_config, variable_name

C = TypeVar("C", bound=BrokerConfig)


def broker_command(
    name: str, model: type[C], run_broker: Callable[[C, asyncio.Event], Coroutine[Any, Any, None]], summary: str
) -> click.Command:
    """A command with one flag per option of `model`, and `--config` for a file."""

    def callback(config: Path | None, **flags: object) -> None:
        options = load_config(model, config, os.environ, flags)
        set_up_logging(options.log_level, options.log_format)
        sys.exit(run_until_signalled(run_broker, options))

    file = click.Option(
        ["--config"],
        type=click.Path(path_type=Path),
        envvar=variable_name(model, "config"),
        show_envvar=True,
        help="TOML file with any of the options below.",
    )
    parameters: list[click.Parameter] = [file]
    parameters += [_option(option, info) for option, info in model.model_fields.items()]
    variable = variable_name(model, "<option>")
    help_text = (
        f"{summary}\n\nAn option is taken from its flag, else from the variable {variable}, else from the file, else "
        "from its default. docs/configuration.md lists all of them. "
        "SIGTERM ends the process cleanly."
    )
    return click.Command(name, params=parameters, callback=callback, help=help_text)


def _option(option: str, info: FieldInfo) -> click.Option:
    # Values are passed on as text: the model checks them, and its errors name the source.
    return click.Option([flag_name(option), option], metavar=_metavar(option, info), help=_help(info), type=_type(info))


def _type(info: FieldInfo) -> click.ParamType[object]:
    return _JsonList() if get_origin(info.annotation) is tuple else click.STRING


def _metavar(option: str, info: FieldInfo) -> str:
    choices = get_args(info.annotation)
    if choices and all(isinstance(choice, str) for choice in choices):
        return "|".join(choices)
    if get_origin(info.annotation) is tuple:
        return "JSON"
    return option.rpartition("_")[2].upper()


def _help(info: FieldInfo) -> str:
    text = info.description or ""
    extra = info.json_schema_extra
    if isinstance(extra, dict) and "unit" in extra:
        text += f" In {extra['unit']}."
    if info.is_required():
        return text + "  [required]"
    return text if info.default in (None, ()) else f"{text}  [default: {info.default}]"


class _JsonList(click.ParamType[object]):
    name = "json"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except json.JSONDecodeError as error:
            self.fail(f"is not JSON: {error.msg} at character {error.pos}", param, ctx)
