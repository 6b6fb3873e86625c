"""The Grafana dashboard of a bundle: traffic, latency against the limit, causes of violations, and cost."""

from __future__ import annotations

import json
from typing import Any

from deploy.plan import Plan
from deploy.promql import SHOWN_QUANTILES, selector
from loadgen.records.formats import format_rate

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
DATASOURCE_VARIABLE = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
GPU_PANELS = (
    ("use", "percentunit", "utilization"),
    ("power", "watt", "power_usage"),
    ("memory", "bytes", "memory_used_bytes"),
)
WIDTH = 24
HEIGHT = 8

Target = tuple[str, str]
"""A PromQL expression, and the legend of its series."""


def render_dashboard(plan: Plan, *, quantile_name: str) -> str:
    """Return the dashboard's JSON: pure, and the same for equal plans."""
    panels = _placed(_panels(plan, quantile_name))
    dashboard = {
        "title": f"{plan.model_name} on Triton",
        "uid": f"tritune-{plan.name}",
        "tags": ["triton", "tritune"],
        "schemaVersion": 41,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "templating": {"list": [DATASOURCE_VARIABLE, _namespace_variable(plan)]},
        "panels": panels,
    }
    return json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"


def _panels(plan: Plan, quantile_name: str) -> list[dict[str, Any]]:
    where = _where(plan)
    job = f'{{job="{plan.name}",namespace=~"$namespace"}}'
    limit_ms = plan.found.slo.first.limit_ms
    certified = plan.certificate.rate_per_s
    price = plan.found.cost.price.usd_per_hour
    burn = (
        (f"model:triton_violations:burn_rate{window}{where}", f"over {window}") for window in ("5m", "1h", "6h")
    )
    quantiles = dict.fromkeys((*SHOWN_QUANTILES, *(limit.quantile for limit in plan.found.slo.limits)))
    shown = ((_where(plan, quantile=f"{quantile:g}"), f"quantile {quantile:g}") for quantile in quantiles)
    latencies = ((f"max(nv_inference_request_summary_us{at}) / 1000", name) for at, name in shown)
    return [
        _panel("Requests", "reqps", (f"sum(model:triton_requests:rate1m{where})", "requests")),
        _panel(
            f"Requests per replica, certified for {format_rate(certified)}/s",
            "reqps",
            (f"model_instance:triton_requests:rate1m{where}", "{{instance}}"),
            (f"vector({certified:.9g})", "certified"),
            (f"vector({plan.scaling.target_rate_per_s:.9g})", "autoscaling target"),
        ),
        _panel(
            f"Latency in the server, limit {limit_ms:g} ms at {quantile_name} (worst replica)",
            "ms",
            *latencies,
            (f"vector({limit_ms:.9g})", "limit"),
            *((f"vector({one.limit_ms:.9g})", f"limit of {one.name}") for one in plan.found.slo.limits[1:]),
        ),
        _panel("Late or failed requests, as a multiple of the allowed share", "none", *burn),
        _panel(
            "Latency breakdown (mean per request)",
            "ms",
            (f"model:triton_queue_ms:mean5m{where}", "queue"),
            (f"model:triton_compute_ms:mean5m{where}", "compute"),
            stacked=True,
        ),
        _panel(
            f"Batch size, at most {max(1, plan.config.max_batch_size)}",
            "none",
            (f"model:triton_batch_size:mean5m{where}", "mean"),
        ),
        _panel(
            "Requests that wait",
            "none",
            (f"sum by (instance) (nv_inference_pending_request_count{where})", "{{instance}}"),
        ),
        _panel(
            "Failures by reason",
            "reqps",
            (f"sum by (reason) (rate(nv_inference_request_failure{where}[$__rate_interval]))", "{{reason}}"),
        ),
        _panel(
            f"Replicas, {plan.scaling.min_replicas} to {plan.scaling.max_replicas}",
            "none",
            (f"sum(job:triton_replicas:count{job})", "replicas"),
        ),
        _panel(
            f"Cost per hour, {price:g} USD a replica",
            "currencyUSD",
            (f"sum(job:triton_cost_usd:per_hour{job})", "all replicas"),
        ),
        _panel(
            "Cost per million inferences",
            "currencyUSD",
            (f"model:triton_cost_usd_per_million:rate1h{where}", "last hour"),
            (f"vector({plan.found.cost.cost_per_million_inferences_usd:.9g})", "at the certified rate"),
        ),
        _panel("Processor use of the node", "percentunit", (f"nv_cpu_utilization{job}", "{{instance}}")),
        *(
            _panel(f"GPU {name}", unit, (f"nv_gpu_{metric}{job}", "{{instance}} {{gpu_uuid}}"))
            for name, unit, metric in GPU_PANELS
            if plan.resources.gpus
        ),
    ]


def _where(plan: Plan, **more: str) -> str:
    return f'{selector(plan.name, plan.model_name, **more)[:-1]},namespace=~"$namespace"}}'


def _panel(title: str, unit: str, *targets: Target, stacked: bool = False) -> dict[str, Any]:
    custom: dict[str, Any] = {"fillOpacity": 20 if stacked else 0, "showPoints": "never", "spanNulls": True}
    if stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    return {
        "type": "timeseries",
        "title": title,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(targets)
        ],
    }


def _placed(panels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the panels with their positions, three per row."""
    width = WIDTH // 3
    return [
        {
            "id": index + 1,
            "gridPos": {"x": width * (index % 3), "y": HEIGHT * (index // 3), "w": width, "h": HEIGHT},
            **panel,
        }
        for index, panel in enumerate(panels)
    ]


def _namespace_variable(plan: Plan) -> dict[str, Any]:
    """Return the variable for the namespace; its value `All` also matches series without one, as in Compose."""
    query = f'label_values(up{{job="{plan.name}"}}, namespace)'
    return {
        "name": "namespace",
        "label": "Namespace",
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": "namespace"},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
