"""Accounts and rights as data: who owns which name, what a layout may say, what is written and what is not."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from tidegate_brokers.access.definitions import password_hash
from tidegate_brokers.access.layout import Layout
from tidegate_brokers.access.names import owns
from tidegate_brokers.access.preparing import Access
from tidegate_brokers.access.roles import Account, client_at_head, subscriber_at_edge
from tidegate_brokers.errors import ConfigurationError, TopologyError
from tidegate_brokers.settings.options import EdgeConfig, HeadConfig
from tidegate_brokers.settings.reading import load_config
from tidegate_protocol.rights import read_rules
from tidegate_protocol.topics import WORDS_MAX

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "deploy" / "compose"
JOBS = ("tidegate", "rabbitmq")
SECRET = "hush-hush-hush"


@pytest.mark.parametrize(
    ("user", "client", "yes"),
    [
        ("siren", "siren", True),
        ("siren", "siren-1", True),
        ("siren", "siren-north-2", True),
        ("siren", "siren-1~k3j", True),
        ("siren", "sirene", False),
        ("siren-1", "siren", False),
        ("", "siren", False),
        ("", "-siren", False),
    ],
)
def test_an_account_owns_its_name_and_what_begins_with_it_and_a_hyphen(user: str, client: str, yes: bool) -> None:
    assert owns(user, client) is yes


def test_rabbitmq_s_rights_say_the_same_about_queues_as_the_head_about_names() -> None:
    account = subscriber_at_edge("siren-a")
    for name in ("siren-a", "siren-a-1", "siren", "siren-ab", "siren-a1", "xsiren-a"):
        assert bool(re.search(account.read, f"out.{name}.0")) is owns("siren-a", name), name
    assert not re.search(account.read, "out.siren-a.0.1")
    assert not re.search(account.read, "outXsiren-a.0")


@pytest.mark.parametrize("publishes", [True, False])
def test_no_client_may_write_to_the_default_exchange_or_reserved_keys(publishes: bool) -> None:
    account = client_at_head("buoy", ("#",) if publishes else ())
    assert not re.search(account.write, "amq.default")
    keys = {rights.exchange: rights.write for rights in account.topics}
    for key in ("head", "operator", "pie.local.main", "broker.head", "client.buoy", "homer", "a.hom"):
        assert not re.search(keys["tidegate.control"], key), key
    if publishes:
        assert re.search(keys["tidegate.publish"], "quake.alert")
        assert not re.search(keys["tidegate.publish"], "tidegate.marker.m.head")
        assert re.search(keys["tidegate.publish"], ".".join("a" * WORDS_MAX))
        assert not re.search(keys["tidegate.publish"], ".".join("a" * (WORDS_MAX + 1)))
        assert not re.search(keys["tidegate.publish"], "." * WORDS_MAX)
    else:
        assert not any(re.search(keys["tidegate.publish"], key) for key in ("", "a", "\n"))


def test_an_account_that_may_pass_on_the_user_of_others_can_only_deliver() -> None:
    """It could write control messages in anybody's name otherwise."""
    layout = Layout.load(COMPOSE / "layout.toml", COMPOSE / "layout-multi.toml")
    links = {
        (place.name, account.user): account
        for place in layout.places
        for account in layout.accounts(place)
        if "impersonator" in account.tags
    }
    assert {("edge-1", "link.head"), ("head", "link.north-head"), ("north-head", "link.head")} <= links.keys()
    for account in links.values():
        assert (account.configure, account.read, account.topics, account.tags) == ("^$", "^$", (), ("impersonator",))
        for name in ("tidegate.control", "tidegate.publish", "tidegate.markers", "amq.default", "link.edge-1"):
            assert not re.search(account.write, name), (account, name)


def test_where_brokers_share_a_rabbitmq_definitions_may_be_read_in_any_order(tmp_path: Path) -> None:
    """Tags are not of a virtual host: those of a head must not go with what its neighbour's definitions say of it."""
    file = tmp_path / "layout.toml"
    heads = [f'[[head]]\nname = "{name}"\ncluster = "{name}"\nhost = "x"\nvhost = "{name}"\n' for name in ("a", "b")]
    file.write_text("".join(heads) + '[[link]]\nbetween = ["a", "b"]\n')
    layout = Layout.load(file)
    for place in layout.places:
        tags = {account.user: set(account.tags) for account in layout.accounts(place)}
        assert tags["broker.a"] == tags["broker.b"] == {"monitoring", "policymaker"}


def test_the_layouts_of_compose_are_in_order_and_give_each_broker_what_it_needs(tmp_path: Path) -> None:
    layout = Layout.load(COMPOSE / "layout.toml", COMPOSE / "layout-multi.toml")
    Access(layout, tmp_path, {"TIDEGATE_RABBITMQ_MEMORY": "512m"}).write()
    head = load_config(HeadConfig, tmp_path / "head" / "broker.toml")
    assert [neighbour.name for neighbour in head.neighbours] == ["north-head", "south-head"]
    assert {(n.url.user, n.link.user) for n in head.neighbours} == {("broker.head", "link.head")}
    assert head.client_names == "own"
    assert head.accounts == "checked"
    edge = load_config(EdgeConfig, tmp_path / "edge-1" / "broker.toml")
    assert edge.link.user == "link.head"
    assert edge.accounts == "checked"
    assert edge.url.user == edge.head_url.user == "broker.edge-1"
    assert (tmp_path / "head" / "conf.d" / "memory.conf").read_text().strip().endswith(str(512 << 20))
    for name in ("head", "edge-1"):
        assert (tmp_path / name / "broker.toml").stat().st_mode & 0o077 == 0, "it holds passwords"
        accounts = json.loads((tmp_path / name / "definitions" / "2-accounts.json").read_text())
        assert "guest" not in [user["name"] for user in accounts["users"]]
        known = {user["name"] for user in accounts["users"]}
        assert {right["user"] for right in accounts["permissions"]} == known


@pytest.mark.parametrize(("certificates", "port"), [(None, 15692), ("/access/tls", 15691)])
def test_prometheus_is_told_of_every_broker_there_is_and_no_other(
    tmp_path: Path, certificates: str | None, port: int
) -> None:
    for files, brokers in ((["layout.toml", "layout-multi.toml"], 9), (["layout.toml"], 5)):
        layout = Layout.load(*(COMPOSE / file for file in files))
        Access(layout, tmp_path, {}, certificates).write()
        found = {job: json.loads((tmp_path / "prometheus" / f"{job}.json").read_text()) for job in JOBS}
        assert {job: len(targets) for job, targets in found.items()} == dict.fromkeys(JOBS, brokers)
    labels = {"cluster": "main", "broker": "edge-1", "role": "edge"}
    assert {"targets": ["edge-1:15781"], "labels": labels} in found["tidegate"]
    assert {"targets": [f"edge-1-rabbitmq:{port}"], "labels": labels} in found["rabbitmq"]
    head = {"cluster": "main", "broker": "head", "role": "head"}
    assert {"targets": ["head:15780"], "labels": head} in found["tidegate"]


def test_passwords_are_made_once_and_kept(tmp_path: Path) -> None:
    layout = Layout.load(COMPOSE / "layout.toml")
    first = Access(layout, tmp_path, {})
    first.write()
    assert Access(layout, tmp_path, {}).url("publisher") == first.url("publisher")
    assert Access(layout, tmp_path / "other", {}).url("publisher") != first.url("publisher")


def test_a_password_can_be_chosen_or_put_into_a_file(tmp_path: Path) -> None:
    layout = Layout.load(COMPOSE / "layout.toml")
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    for environ in ({"TIDEGATE_PASSWORD_PUBLISHER": SECRET}, {"TIDEGATE_PASSWORD_PUBLISHER_FILE": str(file)}):
        assert Access(layout, tmp_path, environ).url("publisher").password == SECRET


@pytest.mark.parametrize("password", ["short", "publisher", "guest"])
def test_a_password_that_is_none_is_refused_and_not_repeated(tmp_path: Path, password: str) -> None:
    with pytest.raises(ConfigurationError, match="TIDEGATE_PASSWORD_PUBLISHER") as caught:
        Access(Layout.load(COMPOSE / "layout.toml"), tmp_path, {"TIDEGATE_PASSWORD_PUBLISHER": password})
    assert password not in str(caught.value).replace("TIDEGATE_PASSWORD_PUBLISHER", "") or password == "publisher"


def test_nothing_is_written_where_a_setting_is_wrong(tmp_path: Path) -> None:
    environ = {"TIDEGATE_EDGE_DOWNLINK_BYTES_PER_S": "ten"}
    with pytest.raises(ConfigurationError, match="variable TIDEGATE_EDGE_DOWNLINK_BYTES_PER_S"):
        Access(Layout.load(COMPOSE / "layout.toml"), tmp_path, environ).write()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('[[client]]\nname = "siren"\n[[client]]\nname = "siren-1"', "could use the name siren-1"),
        ('[[client]]\nname = "head"', "head is named twice"),
        ('[[edge]]\nname = "e"\nhead = "h"\nhost = "x"', "belongs to a head h that is not there"),
        ('[[link]]\nbetween = ["head", "other"]', "no link between head and other"),
        ('[[client]]\nname = "a.b"', "name"),
        ('[[client]]\nname = "a"\nshout = true', "shout"),
        ('[[client]]\nname = "a"\npublish = ["a..b"]', "empty word"),
        ('[[client]]\nname = "a"\npublish = ["#.#.#"]', "3 times"),
        ('[[client]]\nname = "a"\ntenant = "t"', "a tenant t that is not there"),
        ('[[tenant]]\nname = "t"\n[[tenant]]\nname = "t"', "t is named twice"),
        ('[[operator]]\nname = "o"\ntenant = "t"', "operator o belongs to a tenant t that is not there"),
        (
            '[[tenant]]\nname = "t"\nsubscribe = ["x.*", "y"]\n'
            '[[client]]\nname = "a"\ntenant = "t"\nsubscribe = ["x.#"]',
            r"a may subscribe x.#, its tenant t only x.\*, y",
        ),
        (
            '[[tenant]]\nname = "t"\n[[client]]\nname = "a"\ntenant = "t"\npublish = ["x"]',
            "a may publish x, its tenant t only nothing",
        ),
        ("[[client]", "is not TOML"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(tmp_path: Path, more: str, words: str) -> None:
    file = tmp_path / "layout.toml"
    file.write_text('[[head]]\nname = "head"\ncluster = "main"\nhost = "x"\n' + more)
    with pytest.raises(TopologyError, match=words):
        Layout.load(file)


TENANTS = """
[[head]]
name = "head"
cluster = "main"
host = "x"
[[edge]]
name = "edge"
head = "head"
host = "x"
[[tenant]]
name = "coast"
publish = ["coast.#"]
subscribe = ["coast.#", "weather.*"]
[[client]]
name = "siren"
tenant = "coast"
subscribe = true
[[client]]
name = "buoy"
tenant = "coast"
publish = ["coast.north.*", "coast.south.*"]
[[client]]
name = "free"
publish = true
subscribe = true
[[client]]
name = "idle"
"""


def test_an_account_has_its_own_patterns_or_its_tenant_s_or_any(tmp_path: Path) -> None:
    (tmp_path / "layout.toml").write_text(TENANTS)
    layout = Layout.load(tmp_path / "layout.toml")
    found = {rights.account: (rights.tenant, rights.publish, rights.subscribe) for rights in layout.rules}
    assert found == {
        "siren": ("coast", (), ("coast.#", "weather.*")),
        "buoy": ("coast", ("coast.north.*", "coast.south.*"), ()),
        "free": (None, ("#",), ("#",)),
        "idle": (None, (), ()),
    }
    Access(layout, tmp_path, {}).write()
    for broker in ("head", "edge"):
        assert read_rules((tmp_path / broker / "rules.json").read_bytes()) == layout.rules
    head = load_config(HeadConfig, tmp_path / "head" / "broker.toml")
    assert head.rules_file == str(tmp_path / "head" / "rules.json")
    accounts = {account.user: account for account in layout.accounts(layout.head[0])}
    keys = {
        user: right.write
        for user, account in accounts.items()
        for right in account.topics
        if "publish" in right.exchange
    }
    assert re.search(keys["buoy"], "coast.north.7")
    assert not re.search(keys["buoy"], "coast.west.7")
    assert not re.search(keys["idle"], "")
    readers = {account.user for account in layout.accounts(layout.edge[0])}
    assert readers == {"broker.edge", "warden.edge", "link.head", "siren", "free"}


def test_a_head_with_rules_must_check_names(tmp_path: Path) -> None:
    file = tmp_path / "head.toml"
    file.write_text('name = "h"\ncluster = "c"\nurl = "amqp://127.0.0.1/h"\nrules_file = "rules.json"\n')
    with pytest.raises(ConfigurationError, match=r'rules_file.*client_names = "own"'):
        load_config(HeadConfig, file)


def test_a_hash_is_rabbitmq_s() -> None:
    # The example of RabbitMQ's documentation.
    assert password_hash("test12", bytes.fromhex("908DC60A")) == "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


def test_an_account_without_rights_may_do_nothing() -> None:
    account = Account("nobody")
    assert not any(re.search(right, "x") for right in (account.configure, account.write, account.read))


def test_the_layouts_are_toml() -> None:
    for file in COMPOSE.glob("*.toml"):
        tomllib.loads(file.read_text())
