"""The Kubernetes manifests: valid against Kubernetes' published schemas, complete, and true to their layout.

The schemas come with the package kubernetes-validate. Where there is a `kubectl` or a `kustomize`, what it makes of the
manifests is validated as a whole; elsewhere the manifests are, one by one, and what they refer to.
"""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.prometheus import promtool
from tidegate_brokers.access.layout import Layout
from tidegate_brokers.access.preparing import Access
from tidegate_brokers.settings.options import EDGE_HTTP_PORT, HEAD_HTTP_PORT, PROMETHEUS_PORTS, EdgeConfig, HeadConfig
from tidegate_brokers.settings.reading import variable_name
from tidegate_protocol.form import BODY_BYTES_MAX

ROOT = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.30", kubernetes_validate.latest_version())
WRITTEN = (
    "broker.toml",
    "rules.json",
    "definitions/1-exchanges.json",
    "definitions/2-accounts.json",
    "conf.d/memory.conf",
)
"""What `tidegate access prepare` writes into the folder of each broker."""
LAYOUT = tomllib.loads((ROOT / "layout.toml").read_text())
BROKERS = {place["name"]: place for kind in ("head", "edge") for place in LAYOUT[kind]}
KUSTOMIZATIONS = sorted(ROOT.rglob("kustomization.yaml"))
MANIFESTS = sorted(set(ROOT.rglob("*.yaml")) - set(KUSTOMIZATIONS))

Object = dict[str, Any]


def problems(document: Object) -> Iterator[str]:
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{version}: {document['kind']} {document['metadata']['name']}: {error.message} at {list(error.path)}"


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_manifest_is_valid(file: Path) -> None:
    for document in yaml.safe_load_all(file.read_text()):
        assert list(problems(document)) == []


def test_a_manifest_with_a_mistake_is_not() -> None:
    document = yaml.safe_load((ROOT / "base" / "edge" / "deployment.yaml").read_text())
    document["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    assert list(problems(document))


@pytest.mark.parametrize("file", KUSTOMIZATIONS, ids=lambda file: str(file.parent.relative_to(ROOT)))
def test_what_a_kustomization_names_is_there(file: Path) -> None:
    kustomization = yaml.safe_load(file.read_text())
    assert (kustomization["apiVersion"], kustomization["kind"]) == (
        "kustomize.config.k8s.io/v1beta1",
        "Kustomization",
    )
    for resource in kustomization["resources"]:
        found = file.parent / resource
        assert found.is_file() or (found / "kustomization.yaml").is_file(), resource
    for generator in kustomization.get("configMapGenerator", []):
        assert all((file.parent / name).is_file() for name in generator["files"])
    for generator in kustomization.get("secretGenerator", []):
        assert [name.rpartition("=")[2] for name in generator["files"]] == list(WRITTEN)


def test_every_broker_of_the_layout_is_there_and_no_other() -> None:
    kustomization = yaml.safe_load((ROOT / "kustomization.yaml").read_text())
    named = {name.removeprefix("brokers/") for name in kustomization["resources"] if name.startswith("brokers/")}
    assert named == BROKERS.keys() == {file.parent.name for file in KUSTOMIZATIONS if file.parts[-3] == "brokers"}
    for name, place in BROKERS.items():
        overlay = yaml.safe_load((ROOT / "brokers" / name / "kustomization.yaml").read_text())
        role = "edge" if "head" in place else "head"
        assert overlay["namePrefix"] == f"{name}-"
        assert overlay["resources"] == [f"../../base/{role}"]
        cluster = place.get("cluster") or BROKERS[place["head"]]["cluster"]
        pairs = {"tidegate/cluster": cluster, "tidegate/broker": name, "tidegate/role": role}
        assert overlay["labels"][0]["pairs"] == pairs
        assert place["host"] == f"{name}-rabbitmq.{kustomization['namespace']}.svc.cluster.local"


@pytest.mark.parametrize(
    ("role", "model", "port"), [("head", HeadConfig, HEAD_HTTP_PORT), ("edge", EdgeConfig, EDGE_HTTP_PORT)]
)
def test_a_process_is_told_what_it_understands(role: str, model: type[HeadConfig | EdgeConfig], port: int) -> None:
    deployment = yaml.safe_load((ROOT / "base" / role / "deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    known = {variable_name(model, option) for option in model.model_fields}
    assert {variable["name"] for variable in container["env"]} <= known
    assert container["args"][0] == role
    assert container["ports"][0]["containerPort"] == port
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}, "two processes of one broker do not run at once"


def test_rabbitmq_listens_where_it_is_looked_for() -> None:
    stateful = yaml.safe_load((ROOT / "base" / "rabbitmq" / "statefulset.yaml").read_text())
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"amqp": 5672, "management": 15672, "prometheus": PROMETHEUS_PORTS["http"]}
    service = yaml.safe_load((ROOT / "base" / "rabbitmq" / "service.yaml").read_text())
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports


def test_rabbitmq_is_configured_as_with_docker_compose() -> None:
    here, there = ROOT / "base" / "rabbitmq", ROOT.parent / "rabbitmq"
    settings = [
        [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
        for file in (here / "tidegate.conf", there / "rabbitmq.conf")
    ]
    assert settings[0] == settings[1]
    assert f"max_message_size = {BODY_BYTES_MAX}" in settings[0], "heads take what edges and the SDK take, and no more"
    assert (here / "enabled_plugins").read_text() == (there / "enabled_plugins").read_text()


def test_prometheus_takes_the_scrape_jobs() -> None:
    done = promtool("check", "config", "--syntax-only", "prometheus-scrape.yml", directory=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def builder() -> list[str] | None:
    if shutil.which("kubectl") is not None:
        return ["kubectl", "kustomize"]
    return ["kustomize", "build"] if shutil.which("kustomize") is not None else None


def built(directory: Path) -> list[Object]:
    """What kustomize makes of a copy, with passwords of its own."""
    command = builder()
    assert command is not None
    secret = shutil.ignore_patterns("broker.toml", "definitions", "conf.d", "passwords")
    shutil.copytree(ROOT, directory, dirs_exist_ok=True, ignore=secret)
    written = Access(Layout.load(ROOT / "layout.toml"), directory / "brokers", {}).write()
    assert {directory / "brokers" / name / file for name in BROKERS for file in WRITTEN} <= set(written)
    done = subprocess.run([*command, str(directory)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


if builder() is not None:  # not a skip: no package of PyPI or Debian has a recent one, so it may well be missing

    def test_what_kustomize_makes_of_it_is_valid_and_holds_together(tmp_path: Path) -> None:
        documents = built(tmp_path)
        assert [problem for document in documents for problem in problems(document)] == []
        named = {(document["kind"], document["metadata"]["name"]): document for document in documents}
        assert all(document["metadata"].get("namespace", "tidegate") == "tidegate" for document in documents)
        secrets = {name for kind, name in named if kind == "Secret"}
        for broker in BROKERS:
            pods = [named["StatefulSet", f"{broker}-rabbitmq"], named["Deployment", f"{broker}-process"]]
            for owner in pods:
                template = owner["spec"]["template"]
                labels = template["metadata"]["labels"]
                assert owner["spec"]["selector"]["matchLabels"].items() <= labels.items()
                assert (labels["tidegate/broker"], labels["app.kubernetes.io/part-of"]) == (broker, "tidegate")
                (access,) = [volume for volume in template["spec"]["volumes"] if volume["name"] == "access"]
                assert access["secret"]["secretName"] in secrets
            service = named["Service", f"{broker}-rabbitmq"]
            assert service["spec"]["selector"].items() <= pods[0]["spec"]["template"]["metadata"]["labels"].items()
            assert service["spec"]["selector"]["tidegate/broker"] == broker
        images = {
            c["image"]
            for d in documents
            if d["kind"] in ("StatefulSet", "Deployment")
            for c in d["spec"]["template"]["spec"]["containers"]
        }
        assert images == {"tidegate:local", "rabbitmq:4-management"}
