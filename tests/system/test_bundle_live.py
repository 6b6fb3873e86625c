"""A bundle at work: a real Triton serves it under its smoke test, and a real Prometheus watches."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from live_bundles import LOAD_S, written_bundle
from prometheus import Prometheus, prometheus
from waiting import wait_until

from model_repo.repository.config_pbtxt import parse_config_pbtxt
from model_repo.server.hosts import serve_repository
from model_repo.server.options import ServerOptions
from model_repo.spec import Endpoint

pytestmark = pytest.mark.system

LOADTEST = str(Path(sys.executable).with_name("loadtest"))
NAMESPACE = "tiny-production"

IMPOSSIBLE = "0.01ms"
"""A limit that no machine keeps: less than a request takes to the server and back."""


def documents(path: Any) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def smoke(bundle: Path, endpoint: Endpoint) -> tuple[int, str]:
    """The exit code of the smoke job's own command against a server here, and what it says.

    Its load lasts half a minute or more, and the limit that takes the place of its own is decided sooner.
    """
    (job,) = documents(bundle / "kubernetes" / "smoke" / "job.yaml")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    _, *arguments = container["args"]
    changes = {"--duration": f"{LOAD_S}s", "--p90": IMPOSSIBLE}
    kept = [argument for argument in arguments if argument.partition("=")[0] not in changes]
    assert len(kept) == len(arguments) - len(changes), arguments
    command = [*kept, *(f"{name}={value}" for name, value in changes.items()), "--max-send-lag=30s"]
    done = subprocess.run(
        [LOADTEST, endpoint.url("http"), *command], capture_output=True, text=True, timeout=280, check=False
    )
    return done.returncode, done.stdout + done.stderr


def expressions(bundle: Any) -> Iterator[tuple[Any, str]]:
    """(where it stands, PromQL) of everything in the bundle that asks Prometheus for something."""
    for group in documents(bundle / "prometheus-rules.yaml")[0]["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:  # where nothing is wrong they return nothing: ask for both sides of the comparison
                yield rule["alert"], re.sub(r" (>|<) (?!bool)", r" \1 bool ", rule["expr"])
            else:
                yield rule["record"], rule["expr"]
    for panel in json.loads((bundle / "grafana-dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$namespace", ".*").replace("$__rate_interval", "1m")
            yield panel["title"], expression
    components = bundle / "kubernetes" / "components"
    (keda,) = documents(components / "autoscaling-keda" / "scaled-object.yaml")
    yield "KEDA", keda["spec"]["triggers"][0]["metadata"]["query"]
    (adapter,) = documents(components / "autoscaling-hpa" / "prometheus-adapter-values.yaml")
    (external,) = adapter["rules"]["external"]
    yield "prometheus-adapter, to find it", external["seriesQuery"]
    labels = f'namespace="{NAMESPACE}",job="tiny"'
    yield "prometheus-adapter", external["metricsQuery"].replace("<<.LabelMatchers>>", labels)
    (canary,) = documents(components / "argo-rollouts" / "analysis-canary.yaml")
    for metric in canary["spec"]["metrics"]:
        query = metric["provider"]["prometheus"]["query"]
        yield metric["name"], re.sub(r"\{\{args\.(canary|stable)\}\}", "v1", query)


def scraping(bundle: Path, endpoint: Endpoint) -> dict[Any, Any]:
    """What the ServiceMonitor and the rule files come to, with seconds for a quarter of a minute."""
    target = {
        "targets": [f"127.0.0.1:{endpoint.metrics_port}"],
        "labels": {"namespace": NAMESPACE, "rollouts_pod_template_hash": "v1"},
    }
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(bundle / "prometheus-rules.yaml")],
        "scrape_configs": [{"job_name": "tiny", "static_configs": [target]}],
    }


def server_arguments(bundle: Path) -> tuple[Any, ...]:
    (deployment,) = documents(bundle / "kubernetes" / "base" / "deployment.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return tuple(argument for argument in container["args"] if argument.startswith("--metrics-config"))


def unanswered(bundle: Path, server: Prometheus) -> Iterator[tuple[Any, Any]]:
    """The expressions that return nothing, or no number."""
    for where, expression in expressions(bundle):
        values = [value for _, value in server.query(expression)]
        if not values or not all(math.isfinite(value) for value in values):
            yield where, expression


def test_the_bundle_at_work(tmp_path: Path) -> None:
    bundle = written_bundle(tmp_path)
    native = (bundle / "model_repository_native" / "tiny" / "config.pbtxt").read_text()
    assert parse_config_pbtxt(native).backend == "onnxruntime"
    options = ServerOptions(run_dir=tmp_path, extra_arguments=server_arguments(bundle))
    with (
        serve_repository(bundle / "model_repository", options) as standing,
        prometheus(bundle.parent, scraping(bundle, standing.endpoint)) as server,
    ):
        code, said = smoke(bundle, standing.endpoint)
        assert code == 99, said
        wait_until(lambda: server.query("model:triton_cost_usd_per_million:rate1h"))
        assert list(unanswered(bundle, server)) == []
