"""Draws `docs/figures/burst.png`: the oldest delivery of a topic in danger, with and without Tidegate."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tidegate_experiments.burst.run import run_ews
from tidegate_experiments.burst.scenario import EwsOptions, topic_number
from tidegate_simulator.observer import Observer
from tidegate_simulator.world import World

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "burst.png"
TOPIC = 8
"""The topic whose deadline the papers' burst breaks where nobody moves (seed 000 §V)."""
CURVES = (("none", "nobody moves", "#d55e00", "--"), ("peer-wd", "Tidegate", "#0072b2", "-"))


class _Oldest(Observer):
    """The age of the oldest delivery of `TOPIC` in each second."""

    def __init__(self) -> None:
        self.age_s: dict[int, float] = {}
        self.deadline_s = 0.0
        self._subscribers: set[str] = set()

    def started(self, world: World) -> None:
        for subscriber in world.scenario.subscribers:
            if topic_number(subscriber.pattern) == TOPIC:
                self._subscribers.add(subscriber.name)
                self.deadline_s = subscriber.deadline_s

    def delivered(
        self, subscriber: str, message_id: str, published_s: float, now: float, *, late: bool, collected: bool
    ) -> None:
        if subscriber in self._subscribers:
            self.age_s[int(now)] = max(self.age_s.get(int(now), 0.0), now - published_s)


def main() -> None:
    figure = Figure(figsize=(8.0, 3.2), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for policy, label, colour, style in CURVES:
        seen = _Oldest()
        run = run_ews(EwsOptions(policy=policy), besides=(seen,))
        seconds = [second for second in sorted(seen.age_s) if second < run.result.duration_s]
        late = f"{run.result.late:,} late" if run.result.late else "nothing late"
        axes.plot(seconds, [seen.age_s[s] for s in seconds], style, color=colour, linewidth=2, label=f"{label}: {late}")
    axes.axhline(seen.deadline_s, color="#444444", linewidth=1, linestyle=":", label=f"deadline, {seen.deadline_s:g} s")
    axes.axvline(run.result.burst_at_s, color="#999999", linewidth=1, label="burst: seven topics double")
    axes.set(xlabel="time (s)", ylabel=f"oldest message of topic {TOPIC} (s)", xlim=(15, run.result.duration_s))
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0.21, 1.0))
    figure.tight_layout()
    figure.savefig(FIGURE)


if __name__ == "__main__":
    main()
