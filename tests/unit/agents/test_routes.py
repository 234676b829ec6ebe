"""Routes of a head: bindings, offers, leftovers, and sets sent in parts."""

from __future__ import annotations

from tidegate_agents.topics.routes import LinkChange, Mirror, RouteTable


def test_a_neighbour_is_offered_what_all_others_need() -> None:
    routes = RouteTable(["n1", "n2"])
    routes.need("e1", "a")
    routes.need("n1", "b")
    assert routes.offers["n1"].patterns.maximal == {"a"}
    assert routes.offers["n2"].patterns.maximal == {"a", "b"}


def test_a_link_binds_the_covering_set_and_adds_before_it_removes() -> None:
    routes = RouteTable()
    routes.need("e1", "a.#")
    routes.need("e1", "a.b")
    assert routes.take_changes() == [LinkChange("e1", ("a.#",), ())]
    routes.release("e1", "a.#")
    assert routes.take_changes() == [LinkChange("e1", ("a.b",), ("a.#",))]
    assert routes.take_changes() == []


def test_leftovers_stay_bound_and_offered_until_their_owner_is_heard() -> None:
    routes = RouteTable(["n1"])
    routes.adopt("e1", {"a", "b"})
    routes.need("e1", "a")
    routes.need("e1", "#")
    assert routes.take_changes() == [LinkChange("e1", ("#",), ())]
    routes.release("e1", "#")
    assert routes.take_changes() == [LinkChange("e1", (), ("#",))]
    assert routes.offers["n1"].patterns.maximal == {"a", "b"}
    routes.settle("e1")
    assert routes.take_changes() == [LinkChange("e1", (), ("b",))]
    assert routes.offers["n1"].patterns.maximal == {"a"}
    routes.validate()


def test_a_set_told_anew_in_parts_unbinds_nothing_in_between() -> None:
    routes = RouteTable(["n1"])
    for pattern in ("a", "b"):
        routes.need("n1", pattern)
    routes.take_changes()
    routes.keep_until_settled("n1")
    routes.release("n1", "a")
    routes.release("n1", "b")
    assert routes.take_changes() == []
    routes.need("n1", "b")
    routes.settle("n1")
    assert routes.take_changes() == [LinkChange("n1", (), ("a",))]


def test_a_dropped_target_leaves_the_offers() -> None:
    routes = RouteTable(["n1"])
    routes.need("e1", "a.*")
    routes.need("e1", "a.b")
    routes.drop_target("e1")
    assert routes.offers["n1"].patterns.maximal == set()
    assert routes.take_changes() == []
    routes.validate()


def test_a_mirror_removes_nothing_before_all_is_added() -> None:
    mirror = Mirror(["x"])
    for pattern in ("a", "b", "c"):
        mirror.want(pattern)
    mirror.unwant("x")
    assert mirror.take(2) == (("a", "b"), ())
    assert mirror.take(2) == (("c",), ("x",))
    assert not mirror
