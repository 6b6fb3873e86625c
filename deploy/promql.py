"""The PromQL of a bundle that is not in a template: selectors, steps, burn rates, canaries."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

OVER_BUDGET = (50.0, 15.0, 10.0, 7.0, 4.0, 2.0, 1.0, 0.1)
"""Multiples of the error budget at which the latency distribution is read. For a p99 limit these are the quantiles
0.5, 0.85, 0.9, 0.93, 0.96, 0.98, 0.99 and 0.999: one above each factor of the burn-rate alerts."""

SHOWN_QUANTILES = (0.5, 0.9)
"""Quantiles that a dashboard shows in addition to those of the limits."""

SUMMARY_ERRORS = ((0.9, 0.01), (0.99, 0.005), (1.0, 0.001))
"""(quantile, error): quantiles of Triton's summary below the first may be off by the second, as a rank. These are
Prometheus' `quantile:error` pairs."""


BURN_RATES: tuple[dict[str, Any], ...] = (
    {"speed": "Fast", "factor": 14.4, "long": "1h", "short": "5m", "severity": "critical"},
    {"speed": "Quick", "factor": 6.0, "long": "6h", "short": "30m", "severity": "critical"},
    {"speed": "Slow", "factor": 3.0, "long": "1d", "short": "2h", "severity": "warning"},
    {"speed": "Creeping", "factor": 1.0, "long": "3d", "short": "6h", "severity": "warning"},
)
"""Google, The Site Reliability Workbook, ch. 5: 2 % of a month's budget in an hour, 5 % in six hours,
10 % in three days."""

BURN_WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")


def selector(job: str, model: str, **more: str) -> Markup:
    """Return `{job="...",model="..."}` with further labels: one printable line for every name of a model."""
    # Grafana ($name), Argo and Prometheus ({{name}}) must find no variables in the model's name.
    literal = _escaped(model).replace("$", r"\x24").replace("{{", r"\x7b\x7b")
    labels = {"job": _escaped(job), "model": literal, **{name: _escaped(value) for name, value in more.items()}}
    return Markup("{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}")  # noqa: S704


def _escaped(value: str) -> str:
    text = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)


def over_limit_steps(quantile: float) -> tuple[tuple[str, float], ...]:
    """Return pairs of (share of requests, quantile of the latency).

    If the latency at the quantile is over the limit, at least that share of the requests is.
    """
    budget = 1 - quantile
    shares = (multiple * budget for multiple in OVER_BUDGET)
    return tuple((f"{share:.6g}", round(1 - share, 9)) for share in shares if share < 1)


def summary_option(quantile: float, *further: float) -> str:
    """Return the value of Triton's `--metrics-config summary_quantiles=`: all limits, and the first's budget."""
    steps = (at for _, at in over_limit_steps(quantile))
    pairs = (
        f"{at:g}:{next(error for below, error in SUMMARY_ERRORS if at < below):g}"
        for at in sorted({*steps, *SHOWN_QUANTILES, quantile, *further})
    )
    return ",".join(pairs)


def burn_alerts(quantile: float) -> list[dict[str, Any]]:
    """Return the alerts that can fire: a budget of 10 % cannot be used up 14.4 times too fast."""
    shares = [(rate, rate["factor"] * (1 - quantile)) for rate in BURN_RATES]
    return [{**rate, "percent": f"{100 * share:g}"} for rate, share in shares if share < 1]


def request_rate(where: str) -> str:
    """Return the query of requests per second, with failed ones, of the replicas that the selector matches."""
    return (
        f"sum(rate(nv_inference_request_success{where}[1m]))\n"
        f"  + sum(rate(nv_inference_request_failure{where}[1m]))"
    )


def canary_metrics(*, model: str, job: str, namespace: str, limit_us: str, quantile: str) -> list[dict[str, Any]]:
    """Return the metrics that judge a canary, each with the `most` that is allowed.

    Argo fills in `{{args.canary}}` and `{{args.stable}}` as it runs.
    """

    def of(version: str, **more: str) -> str:
        return selector(
            job, model, namespace=namespace, rollouts_pod_template_hash="{{args." + version + "}}", **more
        )

    def latency(version: str) -> str:
        return f"max(nv_inference_request_summary_us{of(version, quantile=quantile)})"

    def failures(version: str) -> str:
        return (
            f"sum(rate(nv_inference_request_failure{of(version)}[2m])) / (\n"
            f"  sum(rate(nv_inference_request_success{of(version)}[2m]))\n"
            f"    + sum(rate(nv_inference_request_failure{of(version)}[2m])))"
        )

    return [
        {
            "name": "latency-limit",
            "words": "Its worst replica is within the limit.",
            "query": f"{latency('canary')} / {limit_us}",
            "most": 1.0,
        },
        {
            "name": "latency-against-running",
            "words": "It is not more than a quarter slower than the worst replica of the running version.",
            "query": f"{latency('canary')}\n  / {latency('stable')}",
            "most": 1.25,
        },
        {
            "name": "failures-against-running",
            "words": "It does not fail more often, but for one request in a thousand.",
            "query": f"{failures('canary')}\n- ({failures('stable')})",
            "most": 0.001,
        },
    ]
