"""Operators in the simulator: questions put to a head in the middle of a run, and the answers kept in golden files.

The files under tests/golden/operators are answers of the burst experiment, so that what is made of them is tested on
real decisions. `python -m tests.support.operators`, from the repository's root, makes them anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from tidegate_agents.load.threshold import ThresholdKind
from tidegate_agents.machine import Action, Event, MessageReceived, Reply, ReplyAddress
from tidegate_experiments.burst.scenario import EwsOptions, scenario
from tidegate_protocol.messages import ControlMessage, decode, encode
from tidegate_protocol.operations import ExplainRequest, OverviewRequest, PauseRequest, PlanRequest
from tidegate_simulator.observer import Observer
from tidegate_simulator.world import World

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "operators"
HEAD: Final = "bh"
BURST: Final = EwsOptions(scale=0.2, instant=False, threshold=ThresholdKind.PROJECTED, duration_s=65.0)
"""Long enough for two sessions of b1 and what comes of them."""
SESSION_S_FIRST: Final = 2.5
"""Less than a session takes over these links: the first one comes late enough to need a second, a last resort."""

M = TypeVar("M", bound=ControlMessage)


class Operator(Observer):
    """Asks the head at given moments, and keeps what it answers. Speaks as the head itself, so that answers go nowhere
    else.
    """

    def __init__(self, questions: Mapping[str, tuple[float, ControlMessage]]) -> None:
        self.answers: dict[str, ControlMessage] = {}
        self._questions = questions

    def started(self, world: World) -> None:
        for name, (at_s, message) in self._questions.items():
            world.kernel.at(at_s, self._ask, (world, name, message))

    def _ask(self, argument: tuple[World, str, ControlMessage]) -> None:
        world, name, message = argument
        world.heads[HEAD].post(MessageReceived(message, ReplyAddress(f"{HEAD} 1", f"operator {name}")))

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        for action in actions:
            if isinstance(action, Reply) and action.to.request.startswith("operator "):
                self.answers[action.to.request.removeprefix("operator ")] = action.message


def ask(options: EwsOptions, questions: Mapping[str, tuple[float, ControlMessage]]) -> dict[str, ControlMessage]:
    """Run the burst experiment and put these questions, each at its moment."""
    operator = Operator(questions)
    wanted = scenario(options)
    wanted = replace(wanted, balancing=replace(wanted.balancing, session_s_first=SESSION_S_FIRST))
    World(wanted, observers=(operator,)).run()
    return operator.answers


def recorded(name: str, kind: type[M]) -> M:
    """An answer of the golden files."""
    message = decode((GOLDEN / f"{name}.json").read_bytes())
    assert isinstance(message, kind), message.kind
    return message


def _record() -> None:
    end_s = 60.0
    answers = ask(
        BURST,
        {
            "plan-at-rest": (20.0, PlanRequest()),
            "overview-in-session": (38.5, OverviewRequest()),
            "overview": (end_s, OverviewRequest()),
            "session": (end_s, ExplainRequest(about="b1~1~1")),
            "session-running": (39.5, ExplainRequest(about="b1~1~1")),
            "cluster": (end_s, ExplainRequest()),
            "edge": (end_s, ExplainRequest(about="b1")),
            "helper": (end_s, ExplainRequest(about="b3")),
            "head": (end_s, ExplainRequest(about=HEAD)),
            "subscriber": (end_s, ExplainRequest(about="t1-s1")),
        },
    )
    answers |= ask(
        BURST,
        {
            "paused": (20.0, PauseRequest(paused=True)),
            "plan-paused": (39.0, PlanRequest()),
            "overview-paused": (39.0, OverviewRequest()),
        },
    )
    GOLDEN.mkdir(exist_ok=True)
    for name, message in answers.items():
        (GOLDEN / f"{name}.json").write_bytes(encode(message) + b"\n")


if __name__ == "__main__":
    _record()
