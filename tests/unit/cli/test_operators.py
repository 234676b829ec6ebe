"""The operators' commands on the command line: what they say of themselves, and their exit codes."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tidegate import HeadSilent, Refused
from tidegate_cli.commands import drain, explain, pause, plan, resume, status, undrain
from tidegate_cli.errors import describe
from tidegate_cli.exit_codes import ExitCode
from tidegate_cli.pausing import text
from tidegate_protocol.operations import PauseReply

COMMANDS = {
    "status": status,
    "explain": explain,
    "plan": plan,
    "drain": drain,
    "undrain": undrain,
    "pause": pause,
    "resume": resume,
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_the_address_of_a_head_and_can_print_json(name: str) -> None:
    result = CliRunner().invoke(COMMANDS[name].command, ["--help"])
    assert result.exit_code == ExitCode.OK
    for word in ("--url", "TIDEGATE_URL", "--json"):
        assert word in result.stdout


@pytest.mark.parametrize("arguments", [["drain"], ["undrain"]])
def test_an_edge_has_to_be_named(arguments: list[str]) -> None:
    result = CliRunner().invoke(COMMANDS[arguments[0]].command, ["--url", "amqp://localhost/h"])
    assert result.exit_code == ExitCode.USAGE
    assert "EDGE" in result.stderr


def test_a_name_that_nobody_knows_is_bad_input_and_what_to_do_is_said() -> None:
    described = describe(Refused("unknown", "no edge e9 has been heard of; known: e1, e2", "edge"))
    assert described is not None
    assert described.code == ExitCode.BAD_INPUT
    assert "known: e1, e2" in described.text
    assert "tidegate status" in described.text


def test_a_head_that_does_not_answer_is_unavailable() -> None:
    described = describe(HeadSilent("amqp://localhost", 10.0, "it does not answer"))
    assert described is not None
    assert described.code == ExitCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (PauseReply(cluster="c", paused=True, changed=True), "is paused; `tidegate resume`"),
        (PauseReply(cluster="c", paused=True, changed=True, under_way=2), "2 sessions under way will end as usual"),
        (PauseReply(cluster="c", paused=True, changed=False), "was paused already"),
        (PauseReply(cluster="c", paused=False, changed=True), "is on"),
    ],
)
def test_pausing_says_what_came_of_it(reply: PauseReply, said: str) -> None:
    assert said in text(reply)


def test_exit_codes_are_what_the_help_texts_say() -> None:
    assert (ExitCode.BAD_INPUT, ExitCode.UNAVAILABLE, ExitCode.NOT_YET, ExitCode.FAILED) == (65, 69, 75, 1)
    assert drain.StillThere.exit_code == ExitCode.NOT_YET
