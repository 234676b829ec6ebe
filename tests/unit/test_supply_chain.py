"""What is installed is what was locked, and what was not audited is not called audited."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.audit import last_line, verdict

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "deploy" / "images"
LOCKS = [ROOT / "constraints.txt", *sorted(IMAGES.glob("requirements*.txt"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

Entry = tuple[str, frozenset[str]]


def entries(file: Path) -> dict[str, set[Entry]]:
    """By name: the pins with their hashes; several where they depend on the version of Python."""
    found: dict[str, set[Entry]] = {}
    text = "\n".join(line for line in file.read_text().splitlines() if not line.startswith("#"))
    for line in text.replace("\\\n", " ").splitlines():
        pin, *hashes = re.split(r"\s--hash=", line.strip())
        requirement = Requirement(pin)
        entry = (str(requirement.specifier), frozenset(each.strip() for each in hashes))
        found.setdefault(canonicalize_name(requirement.name), set()).add(entry)
    return found


@pytest.mark.parametrize("file", LOCKS, ids=lambda file: file.name)
def test_every_entry_has_an_exact_version_and_hashes_and_no_address(file: Path) -> None:
    assert "://" not in file.read_text()
    for name, found in entries(file).items():
        for version, hashes in found:
            assert version.startswith("=="), name
            assert hashes, name
            assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), name


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-analytics.txt", "requirements-build.txt"])
def test_images_hold_what_is_tested(name: str) -> None:
    everything = entries(ROOT / "constraints.txt")
    for package, found in entries(IMAGES / name).items():
        assert found <= everything[package], package


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        (IMAGES / "requirements.txt", PROJECT["project"]["dependencies"]),
        (IMAGES / "requirements-analytics.txt", PROJECT["project"]["optional-dependencies"]["analytics"]),
        (
            IMAGES / "requirements-build.txt",
            PROJECT["dependency-groups"]["build"] + PROJECT["build-system"]["requires"],
        ),
        (IMAGES / "requirements-tools.txt", PROJECT["dependency-groups"]["tools"]),
        (ROOT / "constraints.txt", PROJECT["project"]["optional-dependencies"]["dev"][1:]),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_what_the_project_asks_for_is_locked(file: Path, wanted: list[str]) -> None:
    locked = entries(file)
    for requirement in map(Requirement, wanted):
        versions = [version.removeprefix("==") for version, _ in locked[canonicalize_name(requirement.name)]]
        assert all(requirement.specifier.contains(version) for version in versions), f"{requirement}: run make lock"


def package(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "version": "1.0", "vulns": [], **more}


def skipped(name: str) -> dict[str, object]:
    return {"name": name, "skip_reason": "not found"}


def test_a_known_flaw_fails_the_audit_and_is_named() -> None:
    flaw = {"id": "PYSEC-1", "fix_versions": ["1.1"]}
    code, lines = verdict({"dependencies": [package("good"), package("bad", vulns=[flaw])]})
    assert code == 1
    assert lines == ["bad 1.0 has the flaw PYSEC-1; fixed in 1.1: run make lock"]


def test_what_the_service_does_not_know_is_not_called_audited() -> None:
    assert verdict({"dependencies": [skipped("a"), skipped("b")]}) == (
        0,
        ["not audited: the advisory service does not know 2 of 2: a, b"],
    )
    assert verdict({"dependencies": [skipped("a"), package("b")]}) == (
        0,
        ["not audited: the advisory service does not know 1 of 2: a", "1 packages audited, no known flaw"],
    )
    assert last_line("one\n\n  two  \n\n") == "two"


DOCKER = """#!/bin/sh
case "$*" in
  "image inspect rabbitmq:4 "*) echo rabbitmq@sha256:{digest} ;;
  *) exit 1 ;;
esac
"""


def pin(directory: Path, settings: str, *arguments: str) -> tuple[int, str]:
    """Run scripts/pin-images.sh with a Docker that knows one image; its exit code, and the settings afterwards."""
    docker, file = directory / "docker", directory / "settings"
    docker.write_text(DOCKER.format(digest="a" * 64))
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
    file.write_text(settings)
    environ = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}", "ENV_FILE": str(file)}
    done = subprocess.run(
        [ROOT / "scripts/pin-images.sh", *arguments], env=environ, capture_output=True, text=True, check=False
    )
    return done.returncode, file.read_text()


def test_images_are_pinned_by_the_digest_that_docker_knows(tmp_path: Path) -> None:
    pinned = f"A=1\nRABBITMQ_IMAGE=rabbitmq:4@sha256:{'a' * 64}\n"
    assert pin(tmp_path, "A=1\nRABBITMQ_IMAGE=rabbitmq:4\n") == (0, pinned)
    assert pin(tmp_path, pinned, "--check") == (0, pinned)
    assert pin(tmp_path, pinned.replace("aaa", "bbb"), "--renew") == (0, pinned)


def test_an_image_without_a_digest_is_left_alone_and_named(tmp_path: Path) -> None:
    settings = "GRAFANA_IMAGE=grafana/grafana:12\n"
    assert pin(tmp_path, settings) == (1, settings)
    assert pin(tmp_path, settings, "--check") == (1, settings)
