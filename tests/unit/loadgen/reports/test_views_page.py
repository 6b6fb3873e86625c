import pytest
from load_records import capacity, check, compared, curve, load, measurement, record
from parsed_page import Page

from loadgen.records.record import LoadTestRecord
from loadgen.reports.views import html_page

FULL = record(
    outcome="violated",
    exit_code=99,
    reasons=("p99 <= 50 ms is violated",),
    notes=("--insecure: the server's certificate is NOT checked",),
    checks=(check(answer="violated"), check(name="errors <= 0.1 %", kind="errors", limit=0.001, observed=0.0005)),
    capacity=capacity(),
    baseline="old.json",
    comparison=(compared(),),
    measurement=measurement(problems=("the client fell behind",)),
)


@pytest.mark.parametrize(
    "shown",
    [
        FULL,
        record(),
        record(measurement=None, curve=None, timeline=None, checks=()),
        record(load=load(kind="closed", rate_per_s=None, concurrency=4), measurement=measurement(server=None)),
        record(curve=curve().model_copy(update={"quantile": (0.0, 1.0), "latency_ms": (1.0, 1.0)})),
    ],
)
def test_the_page_is_whole_and_loads_nothing(shown: LoadTestRecord) -> None:
    page = Page(html_page(shown))
    assert page.open == []
    assert page.addresses == ["data:,"]
    assert not {"iframe", "img", "object"} & set(page.tags)


def test_the_verdict_comes_before_the_figures_and_nothing_is_left_out() -> None:
    text = Page(html_page(FULL)).text
    places = [
        text.index(word) for word in ("Violated", "p99 <= 50 ms is violated", "Latency: distribution", "Settings")
    ]
    assert places == sorted(places)
    for word in ("NOT checked", "the client fell behind", "old.json", "worse", "10,000", "time-out", "http 503"):
        assert word in text
    assert "Authorization (values are not recorded)" in text


def test_what_a_server_says_cannot_become_markup() -> None:
    hostile = '</style><script>alert("x")</script>'
    page = Page(html_page(record(measurement=measurement(error_example=hostile), notes=(hostile,))))
    assert page.tags.count("script") == Page(html_page(record())).tags.count("script")
    assert page.text.count(hostile) == 2
