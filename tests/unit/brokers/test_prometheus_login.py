"""Prometheus asks for a login where it is not on the loopback alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml

from tests.support.prometheus import promtool
from tidegate_brokers.access.layout import Layout
from tidegate_brokers.access.preparing import Access
from tidegate_brokers.errors import ConfigurationError

ROOT = Path(__file__).parents[3]
PASSWORD = "correct-horse-battery"


def prepared(directory: Path, **environ: str) -> dict[str, Any]:
    """What Prometheus is told about logins, after `tidegate access prepare` for docker-compose.yml."""
    layout = Layout.load(ROOT / "deploy/compose/layout.toml")
    Access(layout, directory, {"TIDEGATE_PASSWORD_PROMETHEUS": PASSWORD, **environ}).write()
    found = yaml.safe_load((directory / "prometheus/web.yml").read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.7", "rabbits.example", ""])
def test_others_need_the_password(tmp_path: Path, address: str) -> None:
    users = prepared(tmp_path, TIDEGATE_BIND=address)["basic_auth_users"]
    assert bcrypt.checkpw(PASSWORD.encode(), users["tidegate"].encode())
    assert PASSWORD not in (tmp_path / "prometheus/web.yml").read_text()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1", "[::1]", "localhost"])
def test_on_the_loopback_nobody_does(tmp_path: Path, address: str) -> None:
    assert prepared(tmp_path, TIDEGATE_BIND=address) == {}


def test_those_who_ask_it_are_given_the_password(tmp_path: Path) -> None:
    prepared(tmp_path)
    client = yaml.safe_load((tmp_path / "prometheus/client.yml").read_text())
    assert client == {"basic_auth": {"username": "tidegate", "password_file": "/access/password"}}
    for file in ("prometheus/password", "grafana/prometheus-password"):
        assert (tmp_path / file).read_text() == PASSWORD + "\n"
    for name in ("prometheus.yml", "prometheus-tls.yml"):
        jobs = yaml.safe_load((ROOT / "deploy/prometheus" / name).read_text())["scrape_configs"]
        assert next(job for job in jobs if job["job_name"] == "prometheus")["basic_auth"] == client["basic_auth"]


@pytest.mark.parametrize("password", ["x" * 73, "cash-$HOME-cash"])
def test_a_password_that_could_not_work_is_refused_before_anything_is_written(tmp_path: Path, password: str) -> None:
    with pytest.raises(ConfigurationError, match="TIDEGATE_PASSWORD_PROMETHEUS"):
        prepared(tmp_path, TIDEGATE_PASSWORD_PROMETHEUS=password)
    assert not list(tmp_path.iterdir())


@pytest.mark.docker
def test_prometheus_takes_what_is_written(tmp_path: Path) -> None:
    for address in ("0.0.0.0", "127.0.0.1"):
        prepared(tmp_path, TIDEGATE_BIND=address)
        (tmp_path / "prometheus").chmod(0o755)
        tmp_path.chmod(0o755)
        checked = promtool("check", "web-config", "web.yml", directory=tmp_path / "prometheus")
        assert checked.returncode == 0, checked.stderr
