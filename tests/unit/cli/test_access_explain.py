"""`tidegate access explain`: why an account may publish or subscribe something, or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidegate_cli.commands.access import command
from tidegate_cli.exit_codes import ExitCode

LAYOUT = """
[[head]]
name = "head"
cluster = "main"
host = "x"
[[client]]
name = "siren"
publish = ["coast.alert.*"]
subscribe = ["coast.#"]
"""


def explain(tmp_path: Path, *arguments: str) -> Result:
    (tmp_path / "layout.toml").write_text(LAYOUT)
    return CliRunner().invoke(command, ["explain", *arguments, "--layout", str(tmp_path / "layout.toml")])


@pytest.mark.parametrize(
    ("account", "topic", "code", "words"),
    [
        (
            "siren",
            "coast.alert.1",
            0,
            ["may publish", "the rule coast.alert.*", "may subscribe to", "the rule coast.#"],
        ),
        ("siren-1", "coast.level", 0, ["may not publish", "of the account siren", "tidegate access apply"]),
        ("siren", "coast.*.#", 0, ["may subscribe to coast.*.#"]),
        ("siren", "quake", ExitCode.FAILED, ["may not publish", "may not subscribe to"]),
        ("nobody", "quake", ExitCode.FAILED, ["belongs to no account"]),
        ("siren", "tidegate.marker", ExitCode.FAILED, ["are for brokers"]),
    ],
)
def test_it_says_which_rule_allows_it_or_what_to_do(
    tmp_path: Path, account: str, topic: str, code: int, words: list[str]
) -> None:
    result = explain(tmp_path, account, topic)
    assert result.exit_code == code, result.output
    assert all(each in result.output for each in words), result.output
    assert ("publish" in result.output) is ("*" not in topic)


def test_for_machines_as_json(tmp_path: Path) -> None:
    result = explain(tmp_path, "siren-1", "coast.level", "--json")
    assert json.loads(result.output) == {
        "publish": {
            "allowed": False,
            "client": "siren-1",
            "account": "siren",
            "pattern": "coast.level",
            "verdict": "not-covered",
            "rules": ["coast.alert.*"],
        },
        "subscribe": {
            "allowed": True,
            "client": "siren-1",
            "account": "siren",
            "pattern": "coast.level",
            "verdict": "covered",
            "rule": "coast.#",
        },
    }
