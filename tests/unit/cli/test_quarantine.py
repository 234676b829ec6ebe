"""`tidegate quarantine` on the command line: what must be said, and how answers look."""

from __future__ import annotations

from io import StringIO

import pytest
from click.testing import CliRunner
from rich.console import Console

from tidegate_cli.commands import quarantine
from tidegate_cli.exit_codes import ExitCode
from tidegate_protocol.decisions import SetAsideReason
from tidegate_protocol.quarantine import QuarantineReply, SetAside, Shown, Verb

ENTRY = SetAside(
    id="q-1-7",
    target="edge-1",
    reason=SetAsideReason.TOO_LARGE,
    detail="PRECONDITION_FAILED",
    account="villain",
    topic="t.a",
    size_bytes=2000,
    at_us=1_700_000_000_000_000,
)


def text_of(shown: object) -> str:
    console = Console(width=200, record=True, file=StringIO())
    console.print(shown)
    return console.export_text()


@pytest.mark.parametrize("name", ["list", "show", "replay", "purge"])
def test_every_verb_takes_the_address_of_a_head_and_can_print_json(name: str) -> None:
    result = CliRunner().invoke(quarantine.command, [name, "--help"])
    assert result.exit_code == ExitCode.OK
    assert "TIDEGATE_URL" in result.stdout
    assert "--json" in result.stdout


@pytest.mark.parametrize("name", ["replay", "purge"])
def test_nothing_is_changed_unless_it_is_said_what(name: str) -> None:
    result = CliRunner().invoke(quarantine.command, [name, "--url", "amqp://localhost/h"])
    assert result.exit_code == ExitCode.USAGE
    assert "--all" in result.stderr


def test_what_is_no_id_is_refused_with_the_way_to_find_one() -> None:
    result = CliRunner().invoke(quarantine.command, ["show", "--url", "amqp://localhost/h", "Q_7"])
    assert result.exit_code == ExitCode.USAGE
    assert "tidegate quarantine list" in result.stderr


def test_a_list_names_the_account_the_link_and_the_reason() -> None:
    shown = text_of(quarantine._listed(QuarantineReply(verb=Verb.LIST, total=2, chosen=2, entries=(ENTRY,))))
    for word in ("q-1-7", "edge-1", "too-large", "account villain", "t.a", "2000", "oldest 1 of 2"):
        assert word in shown


def test_one_message_is_shown_with_the_remedy() -> None:
    more = Shown(properties={"user_id": "villain"}, headers={"a": "1"}, body="Ym9keQ==")
    shown = text_of(quarantine._shown(QuarantineReply(verb=Verb.SHOW, total=1, entries=(ENTRY,), shown=more)))
    for word in ("max_message_size", "PRECONDITION_FAILED", "user_id = villain", "headers['a'] = 1", "b'body'"):
        assert word in shown
    assert "no such message" in text_of(quarantine._shown(QuarantineReply(verb=Verb.SHOW, total=0)))


def test_replaying_says_what_is_left() -> None:
    shown = text_of(quarantine._replayed(QuarantineReply(verb=Verb.REPLAY, total=1, done=3, entries=(ENTRY,))))
    assert "3 messages delivered, 1 left" in shown
    assert "refused again" in shown
    assert "1 message removed, 0 left" in text_of(quarantine._purged(QuarantineReply(verb=Verb.PURGE, total=0, done=1)))
