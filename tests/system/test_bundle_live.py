"""A bundle at work: a real Triton serves it under its smoke test, a real Prometheus watches."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import recommendations
import yaml
from engines import plain_engine
from prometheus import prometheus

from deploy.smoke import LONGER
from model_repo.config_pbtxt import parse_config_pbtxt
from model_repo.layout import write_final_repository
from model_repo.options import ServerOptions
from model_repo.spec import ServingConfig, TensorSpec
from model_repo.standing import serve_repository
from search.convert import trial_to_record
from search.records import Slo

pytestmark = [pytest.mark.system, pytest.mark.alone, pytest.mark.timeout(400), pytest.mark.long]

ROOT = Path(__file__).parents[2]
OPTIMIZE = str(Path(sys.executable).with_name("optimize"))
LOADTEST = str(Path(sys.executable).with_name("loadtest"))
NAMESPACE = "tiny-production"

WITHOUT_GPU = {"nv_gpu_utilization", "nv_gpu_power_usage", "nv_gpu_memory_used_bytes"}
"""Metrics that Triton has only on a machine with a GPU: what asks for them returns nothing here."""


RATE_PER_S, LOAD_S = 60.0, 15
"""A certified rate that a machine a tenth as fast as usual keeps, and the seconds of load that decide it."""

SLO = Slo(limit_ms=500.0, quantile=0.9)
"""A promise that survives a machine that stands still now and then."""

IMPOSSIBLE = "0.01ms"
"""A limit that no machine keeps: less than a request takes to the server and back."""


def config(folder):
    """The example's CNN: about a millisecond an image, so that the server and not the client is the limit."""
    path = folder / "tiny.onnx"
    subprocess.run([sys.executable, str(ROOT / "examples" / "small_cnn.py"), str(path)], check=True, timeout=60)
    engine = plain_engine(
        model_name="tiny",
        files=(("model.onnx", path),),
        inputs=(TensorSpec(name="image", datatype="FP32", shape=(3, 64, 64)),),
        outputs=(TensorSpec(name="probabilities", datatype="FP32", shape=(10,)),),
    )
    # One instance: a core is left for Prometheus and the load, and for what else this machine does.
    return ServingConfig(engine=engine, max_batch_size=8, instance_count=1, intra_op_threads=1)


def recommendation(served):
    winner = recommendations.trial(
        config=served, certificate=recommendations.certificate(RATE_PER_S, seconds=LOAD_S / LONGER)
    )
    found = recommendations.recommendation(winner=trial_to_record(winner), slo=SLO)
    return found.model_copy(update={"model": found.model.model_copy(update={"name": "tiny"})})


def written_bundle(folder):
    """The bundle as a run writes it."""
    served = config(folder)
    run = folder / "run"
    write_final_repository(run / "model_repository", served)
    (run / "recommendation.json").write_text(recommendation(served).model_dump_json())
    subprocess.run([OPTIMIZE, "bundle", str(run), "--rate", "1000"], check=True, timeout=60, capture_output=True)
    return run / "bundle"


def documents(path):
    return list(yaml.safe_load_all(path.read_text()))


def smoke(bundle, endpoint, *, limit=None):
    """The exit code of the smoke job's own command against a server here, and what it says.

    Its load lasts half a minute or more, and this promise is decided sooner. `limit` takes the place of its limit.
    """
    (job,) = documents(bundle / "kubernetes" / "smoke" / "job.yaml")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    _, *arguments = container["args"]
    changes = {"--duration": f"{LOAD_S}s", "--p90": limit}
    names = [argument.partition("=")[0] for argument in arguments]
    assert set(changes) <= set(names), names
    command = [
        argument if changes.get(name) is None else f"{name}={changes[name]}"
        for name, argument in zip(names, arguments, strict=True)
    ]
    command += ["--max-send-lag=1s"]  # how late the client is on a busy machine is no matter here
    done = subprocess.run(
        [LOADTEST, endpoint.http_url, *command], capture_output=True, text=True, timeout=150, check=False
    )
    return done.returncode, done.stdout + done.stderr


def expressions(bundle):
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


def scraping(bundle, endpoint):
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


def server_arguments(bundle):
    (deployment,) = documents(bundle / "kubernetes" / "base" / "deployment.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return tuple(argument for argument in container["args"] if argument.startswith("--metrics-config"))


def unanswered(bundle, server):
    """The expressions that return nothing, or no number."""
    for where, expression in expressions(bundle):
        values = [value for _, value in server.query(expression)]
        if not values or not all(math.isfinite(value) for value in values):
            yield where, expression


def test_the_bundle_at_work(tmp_path):
    """One test for all of it, because the load is what takes the time."""
    bundle = written_bundle(tmp_path)
    native = (bundle / "model_repository" / "tiny" / "config.pbtxt").read_text()
    assert parse_config_pbtxt(native).backend == "onnxruntime"
    options = ServerOptions(run_dir=tmp_path, extra_arguments=server_arguments(bundle))
    with (
        serve_repository(bundle / "model_repository_embedded", options) as standing,
        prometheus(bundle.parent, scraping(bundle, standing.endpoint)) as server,
    ):
        code, said = smoke(bundle, standing.endpoint)
        assert code == 0, said
        server.until(lambda: server.query("model:triton_cost_usd_per_million:rate1h"))
        empty = list(unanswered(bundle, server))
        assert [(where, e) for where, e in empty if "nv_gpu_" not in e] == []
        assert {name for _, e in empty for name in re.findall(r"nv_gpu_\w+", e)} == WITHOUT_GPU
        code, said = smoke(bundle, standing.endpoint, limit=IMPOSSIBLE)
        assert code == 99, said
