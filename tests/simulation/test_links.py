"""Links: bandwidth shared in order, delays, and nothing lost when a link is cut."""

from __future__ import annotations

from tidegate_simulator.kernel import Kernel
from tidegate_simulator.links import Link, Message, Pipe


class Target:
    """Remembers what arrived, and when."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.got: list[tuple[float, int]] = []

    def take(self, message: Message) -> None:
        self.got.append((round(self.kernel.now, 9), message.index))


def message(index: int, size_bytes: float = 100.0) -> Message:
    return Message(f"p~1:t:{index}", index, "t", size_bytes, 0.0)


def make(bytes_per_s: float | None = None, delay_s: float = 0.1) -> tuple[Kernel, Link, Target]:
    kernel = Kernel(1)
    target = Target(kernel)
    return kernel, Link(kernel, "e", Pipe(bytes_per_s), delay_s, target.take), target


def test_messages_queue_for_the_bandwidth_and_then_take_the_delay() -> None:
    kernel, link, target = make(bytes_per_s=1_000.0)
    for index in range(3):
        link.send(message(index))
    kernel.run(1.0)
    assert target.got == [(0.2, 0), (0.3, 1), (0.4, 2)]
    assert link.transferred == 3
    assert link.empty


def test_links_of_one_head_share_its_uplink_in_the_order_of_sending() -> None:
    kernel, uplink = Kernel(1), Pipe(1_000.0)
    target = Target(kernel)
    near = Link(kernel, "near", uplink, 0.1, target.take)
    far = Link(kernel, "far", uplink, 0.5, target.take)
    far.send(message(1))
    near.send(message(2, 300.0))
    far.send(message(3))
    kernel.run(2.0)
    assert target.got == [(0.5, 2), (0.6, 1), (1.0, 3)]


def test_what_was_unconfirmed_is_sent_again_in_order() -> None:
    kernel, link, target = make()
    link.send(message(0))
    kernel.run(0.25)  # arrived at 0.1, confirmed at 0.2
    link.send(message(1))
    kernel.run(0.37)  # 1 has arrived at 0.35, its confirm is still on the way
    link.send(message(2))
    link.stop("cut")
    link.send(message(3))
    kernel.run(1.0)
    assert target.got == [(0.1, 0), (0.35, 1)]
    link.start("cut")
    kernel.run(2.0)
    assert target.got[2:] == [(1.1, 1), (1.1, 2), (1.1, 3)]
    assert link.sent_again == 2


def test_a_link_stands_still_until_every_reason_is_over() -> None:
    kernel, link, target = make()
    link.stop("edge down")
    link.stop("cut")
    link.send(message(0))
    link.start("cut")
    kernel.run(1.0)
    assert target.got == []
    link.start("edge down")
    kernel.run(2.0)
    assert target.got == [(1.1, 0)]


def test_a_second_cut_while_repeating_loses_nothing() -> None:
    kernel, link, target = make()
    for index in range(3):
        link.send(message(index))
    link.stop("cut")
    link.start("cut")
    kernel.run(0.05)
    link.stop("cut")
    link.start("cut")
    kernel.run(1.0)
    assert [index for _, index in target.got] == [0, 1, 2]
