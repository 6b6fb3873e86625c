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
from deploy.plan import Plan
from deploy.quoting import FILTERS, plain, prose
from deploy.scaling import HPA_SYNC_S, HPA_TOLERANCE, RATE_WINDOW_S, SCRAPE_INTERVAL_S, most_in_flight
from deploy.smoke import FILES_FOLDER, check_for
from loadgen.records.formats import format_dollars, format_percent, format_rate, format_seconds
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
MANIFEST_FILE = "manifest.json"

DRIFT = 1.25
"""An alert fires if a million inferences cost more than 1.25 times the planned amount."""


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
        "behavior": _rendered("scaling-behavior.j2", {"window_s": plan.scaling.down_window_s}),
        "files_folder": FILES_FOLDER,
        "server_arguments": server_arguments(plan),
        "startup_failures": max(60, math.ceil(5 * plan.scaling.start_s)),
        "model_format": {"onnxruntime": "onnx", OWN: "triton"}.get(plan.config.engine.backend, "tensorrt"),
        **_queries(plan),
        **_figures(plan),
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
    names = {"name": "triton-native", "smoke": "smoke-native", "repository": NATIVE_REPOSITORY}
    native = {**measured, **names, "image": plan.image, "ours": False, "native_only": True}
    return [measured, native]


def _queries(plan: Plan) -> dict[str, Any]:
    """Return the Prometheus queries of rules, scalers and canary."""
    slo = plan.found.slo
    namespace = f"{plan.name}-production"
    limit_us = f"{1000 * slo.first.limit_ms:.9g}"
    quantile = f"{slo.first.quantile:g}"
    return {
        "selector": promql.selector(plan.name, plan.model_name),
        "quantile_selector": lambda at: promql.selector(plan.name, plan.model_name, quantile=f"{float(at):g}"),
        "limit_us": limit_us,
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


def _figures(plan: Plan) -> dict[str, str]:
    """Return figures as text, those that several templates show, or that take more than a filter."""
    found, scaling, certificate = plan.found, plan.scaling, plan.certificate
    price, machine = found.cost.price, found.machine
    as_of = f", as of {price.as_of}" if price.as_of else ""
    gpus = f" and {', '.join(machine.gpus)}" if machine.gpus else ""
    return {
        "certified": format_rate(certificate.rate_per_s),
        "confidence_percent": f"{100 * certificate.confidence:.3g}",
        "limit_ms": f"{found.slo.first.limit_ms:.9g}",
        "slo": found.slo.text,
        "price_words": f"{price.usd_per_hour:g} USD per hour: {price.describes} ({price.source}{as_of})",
        "drift_usd": f"{DRIFT * plan.cost_per_million_at_least_load_usd:.9g}",
        "rate": format_rate(scaling.traffic.rate_per_s),
        "target": format_rate(scaling.target_rate_per_s),
        "scaling_words": _scaling_words(plan),
        "most_in_flight": str(most_in_flight(certificate.rate_per_s, found.slo.first.limit_ms / 1e3)),
        "machine": f"{machine.cpu}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB{gpus}",
    }


def _scaling_words(plan: Plan) -> str:
    """Return the paragraph on the autoscaler's target."""
    scaling, traffic = plan.scaling, plan.scaling.traffic
    measured = ", without pulling its image or adding a node" if scaling.start_source == "measured" else ""
    certified, target = format_rate(scaling.certified_rate_per_s), format_rate(scaling.target_rate_per_s)
    if scaling.judged is not None:
        judged = scaling.judged
        usd, allowed = format_dollars(judged.chosen.usd), format_percent(judged.allowed_share)
        return (
            f"One replica is certified for {certified} requests/s. Another one is started above {target} each: of "
            f"{judged.settings_tried} settings this costs the least in a replay of {judged.traffic} (`optimize "
            f"autoscale`), {usd} for {format_seconds(judged.duration_s)}, with at most {allowed} of the requests "
            f"late, if a replica starts in {judged.start_s:.3g} s."
        )
    rate, peak = format_rate(traffic.rate_per_s), format_rate(traffic.peak_rate_per_s)
    text = (
        f"One replica is certified for {certified} requests/s. Another one is started above {target} each, which "
        f"leaves {100 * scaling.headroom:.1f} % free, because it comes {scaling.reaction_s:.3g} s late: "
        f"{RATE_WINDOW_S / 2:g} s is half the window of the query, {SCRAPE_INTERVAL_S:g} s the age of a sample, "
        f"{HPA_SYNC_S:g} s the autoscaler's period, {scaling.start_s:.3g} s the start of a replica "
        f"({scaling.start_source}{measured}). "
        f"Growing from {rate} to {peak} requests/s within {traffic.ramp_s:g} s, the traffic becomes "
        f"{scaling.lead:.4g} times as high meanwhile, and the autoscaler overlooks {100 * HPA_TOLERANCE:g} %: "
        f"{certified} / ({1 + HPA_TOLERANCE:g} x {scaling.lead:.4g}). At least {scaling.min_replicas}: enough for "
        f"{rate}/s, and one to spare. At most {scaling.max_replicas}: the same for {peak}/s."
    )
    if traffic.assumed:
        text += f" Assumed: {'; '.join(traffic.assumed)}."
    return text
