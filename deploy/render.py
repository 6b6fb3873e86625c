"""Render a plan as the text files of its bundle: pure, and the same bytes for equal plans."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from markupsafe import Markup

from deploy import promql
from deploy.dashboard import render_dashboard
from deploy.images import base_image
from deploy.manifest import MANIFEST_FILE
from deploy.plan import Plan
from deploy.quoting import FILTERS, plain, prose
from deploy.scaling import HPA_SYNC_S, SCRAPE_INTERVAL_S
from deploy.smoke import FILES_FOLDER, check_for
from deploy.text import figures
from loadgen.spec.limits import quantile_option
from model_repo.spec import OWN

if TYPE_CHECKING:
    import jinja2


Target = Literal["kubernetes", "kserve", "compose"]
TARGETS: tuple[Target, ...] = ("kubernetes", "kserve", "compose")

REPOSITORY = "model_repository"
NATIVE_REPOSITORY = "model_repository_native"
RULES_FILE = "prometheus-rules.yaml"
DASHBOARD_FILE = "grafana-dashboard.json"
README_FILE = "README.md"

BEHAVIOR = Markup("""\
# Up at once; down by one replica a minute, when ten minutes have not needed it.
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - type: Percent
      value: 100
      periodSeconds: 15
    - type: Pods
      value: 4
      periodSeconds: 15
  selectPolicy: Max
scaleDown:
  stabilizationWindowSeconds: 600
  policies:
    - type: Pods
      value: 1
      periodSeconds: 60
""")

CONTENTS = (
    (REPOSITORY + "/", "the model with its `config.pbtxt`, for the runtime that was measured"),
    (NATIVE_REPOSITORY + "/", "the same for Triton's native backend: **not measured**"),
    ("compose.yaml", "Triton, Prometheus and Grafana on one machine"),
    ("kubernetes/", "Kustomize: base, components to choose from, overlays for staging and production"),
    ("kserve/", "ServingRuntime and InferenceService"),
    (RULES_FILE, "recording rules and alerts for Prometheus"),
    (DASHBOARD_FILE, "the dashboard for Grafana"),
    ("images/", "recipes of the images, with the packages pinned and tritune as a wheel"),
    (MANIFEST_FILE, "the hash of every file: a new bundle replaces this one only if it is unchanged"),
)


def render_files(plan: Plan, *, targets: Collection[Target], loadtest_image: str | None) -> dict[str, str]:
    """Return path in the bundle -> text, for these targets and for the files that all targets share."""
    context = _context(plan, targets, loadtest_image)
    rules = _rendered(f"{RULES_FILE}.j2", context)
    files: dict[str, str] = {RULES_FILE: rules}
    lines = rules.splitlines(keepends=True)
    first = next(index for index, line in enumerate(lines) if not line.startswith("#"))
    context["rules"] = Markup("").join(lines[first:])  # without the comment before its first key
    files[DASHBOARD_FILE] = render_dashboard(plan, quantile_name=context["quantile_name"])
    for path in _chosen(plan, targets):
        files[path] = _rendered(f"{path}.j2", context)
    if "kubernetes" in targets:
        files[f"kubernetes/base/{DASHBOARD_FILE}"] = files[DASHBOARD_FILE]
    context["contents"] = _contents(plan, files)
    files[README_FILE] = _rendered(f"{README_FILE}.j2", context)
    return {path: str(text) for path, text in sorted(files.items())}


def _chosen(plan: Plan, targets: Collection[Target]) -> Iterator[str]:
    """Yield the files of these targets, and the recipes of the images, which have a template of the same path."""
    left_out = (
        *(() if plan.offers_native else ("native",)),
        *(() if plan.builds_image else ("images/triton",)),
    )
    for template in _environment(markdown=False).list_templates(extensions=["j2"]):
        path = template.removesuffix(".j2")
        of = path.partition("/")[0].removesuffix(".yaml")  # compose.yaml too
        whole = path.endswith((".yaml", ".Dockerfile"))  # and not a part of others
        if whole and of in {*targets, "images"} and not any(part in path for part in left_out):
            yield path


@functools.cache
def _environment(*, markdown: bool) -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(  # noqa: S701 - nothing of it is HTML
        loader=jinja2.PackageLoader("deploy"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        finalize=prose if markdown else plain,
    )
    environment.filters |= FILTERS
    return environment


def _rendered(template: str, context: Mapping[str, Any]) -> Markup:
    """Return the text of a template. Every value in it was quoted or plain, so other templates may include it."""
    environment = _environment(markdown=template.endswith(".md.j2"))
    return Markup(environment.get_template(template).render(context))  # noqa: S704 - nothing of it is HTML


def _context(plan: Plan, targets: Collection[Target], loadtest_image: str | None) -> dict[str, Any]:
    found = plan.found
    context: dict[str, Any] = {
        "plan": plan,
        "targets": targets,
        "loadtest_image": loadtest_image or plan.loadtest_image,
        "repository": REPOSITORY,
        "native_repository": NATIVE_REPOSITORY,
        "servers": _compose_servers(plan),
        # Quoted for a URL it needs no quotes in YAML: letters, digits and `_.-~%`.
        "ready_path": Markup(f"/v2/models/{quote(plan.model_name, safe='')}/ready"),  # noqa: S704
        "base": base_image(plan.sources, plan.config.engine),
        "check": check_for(plan.smoke, plan.certificate.rate_per_s),
        "quantile_name": quantile_option(found.slo.first.quantile),
        "budget": f"{plan.error_budget:g}",
        "budget_percent": f"{100 * plan.error_budget:g}",
        "scrape_s": f"{SCRAPE_INTERVAL_S:g}",
        "hpa_sync_s": f"{HPA_SYNC_S:g}",
        "behavior": BEHAVIOR,
        "files_folder": FILES_FOLDER,
        "server_arguments": server_arguments(plan),
        "startup_failures": max(60, math.ceil(5 * plan.scaling.start_s)),
        "model_format": {"onnxruntime": "onnx", OWN: "triton"}.get(plan.config.engine.backend, "tensorrt"),
        **_queries(plan),
        **figures(plan),
        **_kserve(plan),
    }
    context["job_spec"] = lambda url: _rendered("kubernetes/smoke/job-spec.j2", {**context, "url": url})
    return context


def _compose_servers(plan: Plan) -> list[dict[str, Any]]:
    """Return the servers of Compose: what was measured, and the native backend if that was not."""
    measured = {
        "name": "triton",
        "smoke": "smoke",
        "image": plan.serving_image,
        "repository": REPOSITORY,
        "ours": plan.builds_image,
        "native_only": False,
    }
    if not plan.offers_native:
        return [measured]
    native = {
        "name": "triton-native",
        "smoke": "smoke-native",
        "image": plan.image,
        "repository": NATIVE_REPOSITORY,
        "ours": False,
        "native_only": True,
    }
    return [measured, native]


def _queries(plan: Plan) -> dict[str, Any]:
    """Return the Prometheus queries of rules, scalers and canary."""
    slo = plan.found.slo
    namespace = f"{plan.name}-production"
    limit_us = f"{1000 * slo.first.limit_ms:.9g}"
    quantile = f"{slo.first.quantile:g}"
    return {
        "selector": promql.selector(plan.name, plan.model_name),
        "quantile": quantile,
        "quantile_selector": lambda at: promql.selector(plan.name, plan.model_name, quantile=f"{float(at):g}"),
        "limit_us": limit_us,
        "latency_alerts": [
            {
                "alert": "TritonLatencyOverLimit"
                + ("" if index == 0 else quantile_option(limit.quantile).upper()),
                "name": quantile_option(limit.quantile),
                "quantile": limit.quantile,
                "limit_ms": f"{limit.limit_ms:.9g}",
            }
            for index, limit in enumerate(slo.limits)
        ],
        "over_limit_steps": promql.over_limit_steps(slo.first.quantile),
        "burn_windows": promql.BURN_WINDOWS,
        "burn_alerts": promql.burn_alerts(slo.first.quantile),
        "scaler_query": promql.request_rate(promql.selector(plan.name, plan.model_name, namespace=namespace)),
        "canary_metrics": promql.canary_metrics(
            model=plan.model_name, job=plan.name, namespace=namespace, limit_us=limit_us, quantile=quantile
        ),
    }


def server_arguments(plan: Plan) -> list[str]:
    """Return the arguments of `tritonserver`, without the model repository and the ports."""
    quantiles = [limit.quantile for limit in plan.found.slo.limits]
    return [
        "--disable-auto-complete-config",
        "--exit-timeout-secs=30",
        f"--allow-gpu-metrics={'true' if plan.resources.gpus else 'false'}",
        "--metrics-config=summary_latencies=true",
        f"--metrics-config=summary_quantiles={promql.summary_option(*quantiles)}",
    ]


def _kserve(plan: Plan) -> dict[str, str]:
    """Return KServe's target, a whole number: requests per second, or requests in flight if that is below one."""
    target = math.floor(plan.scaling.target_rate_per_s)
    if target >= 1:
        return {
            "kserve_metric": "rps",
            "kserve_target": str(target),
            "kserve_target_words": "KServe knows whole requests per second alone, so the target is rounded down.",
        }
    return {
        "kserve_metric": "concurrency",
        "kserve_target": "1",
        "kserve_target_words": "Less than one request per second a replica: it is given one at a time instead.",
    }


def _contents(plan: Plan, files: Mapping[str, str]) -> list[tuple[str, Markup]]:
    always = {REPOSITORY + "/", MANIFEST_FILE} | ({NATIVE_REPOSITORY + "/"} if plan.offers_native else set())
    return [
        (path, Markup(words))  # noqa: S704
        for path, words in CONTENTS
        if path in always or any(name == path or name.startswith(path) for name in files)
    ]
