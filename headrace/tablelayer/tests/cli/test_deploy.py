"""The files of `deploy/` and `docker/`: the names in them exist, and their commands are those of the server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.metrics.collect import BROKER_METRICS
from headrace.broker.metrics.model import MetricKind
from headrace.broker.metrics.remote_log import REMOTE_METRICS
from headrace.broker.metrics.replication import REPLICATION_METRICS
from headrace.broker.metrics.requests import REQUEST_SECONDS
from headrace.tablelayer.cli.main import app
from headrace.tablelayer.cli.serve import parse_sets
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.server.metrics import TABLE_METRICS
from headrace.tablelayer.tests.cli.dashboards import DEPLOY, expressions, metrics_of, needed, rules

ROOT = DEPLOY.parent
DECLARED = {
    each.name: each
    for each in (*BROKER_METRICS, *REPLICATION_METRICS, *REMOTE_METRICS, REQUEST_SECONDS, *TABLE_METRICS)
}
OF_THE_LIBRARY = {
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_open_fds",
    "process_max_fds",
}


def test_every_metric_and_label_of_alerts_and_dashboard_is_declared() -> None:
    for rule in rules():
        assert (set(rule["labels"]), bool(rule["annotations"]["summary"])) == ({"severity"}, True)
    found = list(expressions())
    assert len(found) > 30
    for text, _ in found:
        assert metrics_of(text) or text.startswith("up{"), text
    named = needed()
    for name, labels in named.items():
        if name in OF_THE_LIBRARY:
            continue
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        metric = DECLARED.get(name) or DECLARED.get(base)
        assert metric is not None, f"{name} is not declared"
        assert (metric.kind is MetricKind.HISTOGRAM) == (name not in DECLARED), name
        assert labels <= set(metric.labels), name
    assert len(named) > 40, "most of what is measured is shown"


def test_each_alert_has_a_unit_test_in_which_it_is_raised() -> None:
    tests = yaml.safe_load((DEPLOY / "prometheus/headrace.rules.test.yml").read_text())["tests"]
    raised = {
        each["alertname"] for test in tests for each in test["alert_rule_test"] if each.get("exp_alerts")
    }
    assert raised == {rule["alert"] for rule in rules()}


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt-get install prometheus)"
)
@pytest.mark.parametrize("words", ["check rules headrace.rules.yml", "test rules headrace.rules.test.yml"])
def test_prometheus_takes_the_rules_and_raises_the_alerts(words: str) -> None:
    done = subprocess.run(
        ["promtool", *words.split()],
        cwd=DEPLOY / "prometheus",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def options_of(command: str) -> set[str]:
    return set(re.findall(r"--[a-z-]+", CliRunner().invoke(app, [command, "--help"]).stdout))


def test_deployments_use_options_of_serve_that_exist() -> None:
    known = options_of("serve")
    unit = (DEPLOY / "systemd/headrace.service").read_text()
    command = re.search(r"^ExecStart=\S+ serve (.*)$", unit, re.M)
    assert command
    stateful = resource("StatefulSet")
    container = stateful["spec"]["template"]["spec"]["containers"][0]
    compose = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]["headrace"]
    for words in (command.group(1).split(), container["args"], compose["command"]):
        used = {word for word in words if word.startswith("--")}
        assert used
        assert used <= known


def resource(kind: str, name: str = "headrace", file: str = "headrace.yaml") -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / file).read_text())
    return next(each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name))


@pytest.mark.parametrize("file", ["headrace.yaml", "cluster.yaml"])
def test_references_of_the_stateful_set_resolve(file: str) -> None:
    def resource_here(kind: str, name: str = "headrace") -> dict[str, Any]:
        return resource(kind, name, file)

    stateful = resource_here("StatefulSet")
    pod = stateful["spec"]["template"]["spec"]
    container = pod["containers"][0]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert stateful["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for name in ("headrace", "headrace-pods"):
        service = resource_here("Service", name)
        assert service["spec"]["selector"].items() <= labels.items()
        assert all(each["targetPort"] in ports for each in service["spec"]["ports"])
    assert resource_here("Service", stateful["spec"]["serviceName"])["spec"]["clusterIP"] == "None"
    policy = resource_here("NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == set(ports)
    volumes = {each["name"] for each in pod["volumes"]}
    volumes |= {each["metadata"]["name"] for each in stateful["spec"]["volumeClaimTemplates"]}
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert set(mounts.values()) <= volumes
    assert "/data" in mounts, "the image keeps its data there"
    for probe, path in {
        "startupProbe": "/readyz",
        "readinessProbe": "/readyz",
        "livenessProbe": "/healthz",
    }.items():
        assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}
    assert container["args"][container["args"].index("--metrics") + 1].endswith(f":{ports['metrics']}")
    configured = resource_here("ConfigMap")["data"]["server.properties"]
    assert f"listeners=PLAINTEXT://0.0.0.0:{ports['kafka']}" in configured.splitlines()
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert f"--uid {pod['securityContext']['runAsUser']} " in (ROOT / "docker/Dockerfile").read_text()


def test_every_user_of_the_image_finds_its_kernels() -> None:
    """They are compiled for any CPU, in a shared folder where numba looks for a user's kernels."""
    image = (ROOT / "docker/Dockerfile").read_text()
    place = re.search(r"XDG_CACHE_HOME=(\S+)", image)
    assert place
    assert not place[1].startswith("/home")
    made, used, warmed = (
        re.search(pattern, image, re.M)
        for pattern in (rf"^RUN .*install -d -o headrace .*{place[1]}$", r"^USER ", r"^RUN headrace warm-up$")
    )
    assert made is not None
    assert used is not None
    assert warmed is not None
    assert made.start() < used.start() < place.start() < warmed.start()
    assert "NUMBA_CPU_NAME=generic" in image


def test_a_container_of_the_image_is_found_where_its_port_is_published() -> None:
    """It needs no further option: clients are told an address of the host, not the container's name."""
    image = (ROOT / "docker/Dockerfile").read_text()
    given = re.search(r"^CMD (\[.*\])$", image, re.M)
    published = re.search(r"^# docker run -p (\S+):(\d+) -v headrace:/data headrace$", image, re.M)
    assert given
    assert published
    words = json.loads(given[1])
    assert f"EXPOSE {published[2]}" in image
    assert words[:2] == ["--listen", f"0.0.0.0:{published[2]}"]
    assert words[2] == "--set"
    (listener,) = BrokerConfig(parse_sets(words[3:])).listeners(("0.0.0.0", int(published[2])))
    host, port = listener.advertised
    assert f"{host}:{port}" == published[1]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd/headrace.service").read_text()
    copy = tmp_path / "headrace.service"
    copy.write_text(unit.replace("/opt/headrace/bin/headrace", sys.executable))
    answer = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = [line for line in answer.stderr.splitlines() if "headrace.service" in line]
    assert (answer.returncode, said) == (0, []), answer.stderr


def test_the_brokers_of_the_compose_file_are_one_cluster() -> None:
    """Each by a configuration that is taken, under a node.id and an address of its own."""
    compose = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())
    services = compose["services"]
    assert compose["name"] == "headrace", "not the folder's name: another's volumes might have it"
    members = {name: each for name, each in services.items() if name.startswith("broker")}
    ids, outside, paths = set(), set(), set()
    for name, service in members.items():
        words = service["command"]
        options = [(words[at], words[at + 1]) for at in range(0, len(words), 2)]
        sets = parse_sets([value for option, value in options if option == "--set"])
        config = BrokerConfig(sets)
        listeners = {each.name: each for each in config.listeners(("127.0.0.1", 9092))}
        assert listeners["INSIDE"].advertised == (name, 9092)
        host, port = listeners["OUTSIDE"].advertised
        assert service["ports"] == [f"{host}:{port}:{listeners['OUTSIDE'].port}"]
        assert config["inter.broker.listener.name"] == "INSIDE"
        ids.add(config["node.id"])
        outside.add(port)
        paths.update(value for option, value in options if option == "--zookeeper")
        assert service["profiles"] == services["zookeeper"]["profiles"] == ["cluster"]
    assert (ids, len(outside), paths) == ({1, 2, 3}, 3, {"zookeeper:2181/headrace"})
    assert "profiles" not in services["headrace"]


def test_the_brokers_of_the_stateful_set_are_one_cluster() -> None:
    """Each pod has a configuration that is taken, with an id and an address of its own."""
    file = "cluster.yaml"
    stateful = resource("StatefulSet", file=file)
    container = stateful["spec"]["template"]["spec"]["containers"][0]
    sources = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"]}
    assert sources == {
        "POD_NAME": "metadata.name",
        "POD_INDEX": "metadata.labels['apps.kubernetes.io/pod-index']",
    }
    configured = parse_sets(resource("ConfigMap", file=file)["data"]["server.properties"].split())
    service = stateful["spec"]["serviceName"]
    ids, addresses = set(), set()
    for index in range(stateful["spec"]["replicas"]):
        words = [
            each.replace("$(POD_NAME)", f"headrace-{index}").replace("$(POD_INDEX)", str(index))
            for each in container["args"]
        ]
        sets = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
        config = BrokerConfig({**configured, **parse_sets(sets)})
        (listener,) = config.listeners(("127.0.0.1", 9092))
        ids.add(config["node.id"])
        addresses.add(listener.advertised)
        assert config["min.insync.replicas"] < config["default.replication.factor"] == 3
    assert ids == {0, 1, 2}
    assert addresses == {(f"headrace-{index}.{service}", 9092) for index in range(3)}
    zookeeper = resource("Service", "headrace-zookeeper", file)
    host, port = words[words.index("--zookeeper") + 1].partition("/")[0].split(":")
    assert (host, int(port)) == (zookeeper["metadata"]["name"], zookeeper["spec"]["ports"][0]["port"])
    assert {word for word in words if word.startswith("--")} <= options_of("serve")


def test_the_tierer_of_kubernetes_is_run_as_it_is_written() -> None:
    tierer = resource("Deployment", "headrace-tierer", "tierer.yaml")
    pod = tierer["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert {word for word in container["args"] if word.startswith("--")} <= options_of("tier")
    assert container["args"][0] == "tier"
    secret = resource("Secret", container["envFrom"][0]["secretRef"]["name"], "tierer.yaml")
    assert set(secret["stringData"]) <= AWS_NAMES
    server = container["args"][container["args"].index("--server") + 1]
    for file in ("headrace.yaml", "cluster.yaml"):
        service = resource("Service", file=file)
        assert server == f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert [each["mountPath"] for each in container["volumeMounts"]] == ["/tmp"]


def test_the_console_of_kubernetes_is_run_as_it_is_written() -> None:
    file = "console.yaml"
    console = resource("Deployment", "headrace-console", file)
    pod = console["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["args"][0] == "console"
    assert {word for word in container["args"] if word.startswith("--")} <= options_of("console")
    given = dict(zip(container["args"][1::2], container["args"][2::2], strict=True))
    service = resource("Service", "headrace-console", file)
    labels = console["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert given["--listen"].endswith(f":{container['ports'][0]['containerPort']}")
    secrets = {each["name"]: each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    folder, _, name = given["--basic-auth-file"].rpartition("/")
    assert name in resource("Secret", secrets[mounts[folder]], file)["stringData"]
    assert given["--history"].rpartition("/")[0] in mounts
    assert container["securityContext"]["readOnlyRootFilesystem"]


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((DEPLOY / "helm/headrace/Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["appVersion"] == chart["version"] == version


AWS_NAMES = {"AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"}


def test_the_lake_of_the_compose_file_has_a_store_a_server_a_tierer_and_a_console() -> None:
    compose = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())
    services = {name: each for name, each in compose["services"].items() if name.startswith("lake-")}
    assert set(services) == {"lake-store", "lake-bucket", "lake-server", "lake-tierer", "lake-console"}
    assert all(each["profiles"] == ["lake"] for each in services.values())
    words = services["lake-server"]["command"]
    options = [(words[at], words[at + 1]) for at in range(0, len(words), 2)]
    assert {option for option, _ in options} <= options_of("serve")
    sets = parse_sets([value for option, value in options if option == "--set"])
    listeners = {
        each.name: each
        for each in BrokerConfig(sets, TableExtension().broker_configs()).listeners(("127.0.0.1", 9092))
    }
    inside = "{}:{}".format(*listeners["INSIDE"].advertised)
    host, port = listeners["OUTSIDE"].advertised
    assert f"{host}:{port}:{listeners['OUTSIDE'].port}" in services["lake-server"]["ports"]
    assert inside.split(":")[0] == "lake-server"
    store = services["lake-store"]
    for name in ("lake-bucket", "lake-tierer", "lake-console"):
        environment = services[name]["environment"]
        assert set(environment) == AWS_NAMES
        assert environment["AWS_ENDPOINT_URL"] == "http://lake-store:7070"
        assert environment["AWS_SECRET_ACCESS_KEY"] == store["environment"]["ROOT_SECRET_KEY"]
        assert environment["AWS_ACCESS_KEY_ID"] == store["environment"]["ROOT_ACCESS_KEY"]
        assert services[name]["build"]["target"] == "tools"
    compile(services["lake-bucket"]["command"][0], "lake-bucket", "exec")
    for command in ("tier", "console"):
        used = services[f"lake-{command}er" if command == "tier" else "lake-console"]["command"]
        assert used[0] == command
        assert {word for word in used if word.startswith("--")} <= options_of(command)
        assert used[used.index("--server") + 1] == inside
    assert sets["datalake.iceberg.warehouse"].startswith("s3://lake/")
    assert set(compose["volumes"]) >= {"lake", "lake-data"}


def test_the_second_image_has_what_a_tierer_needs() -> None:
    image = (ROOT / "docker/Dockerfile").read_text()
    tools = image.partition("FROM server AS tools\n")[2].partition("\nFROM ")[0]
    assert "jre-headless" in tools
    assert "'.[console,lake,spark]'" in tools
    assert "RUN python -m headrace.tablelayer.spark.jars --all" in tools
    assert tools.index("USER 10001") < tools.index("spark.jars"), "they are kept where the user reads them"
    assert image.rstrip().endswith("\nFROM server"), "without a target the image is the server's"
