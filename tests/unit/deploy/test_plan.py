import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.plan import kubernetes_name

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035, what a Service's name must be


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("resnet50", "resnet50"),
        ("small_cnn", "small-cnn"),
        ("BERT.Base v2", "bert-base-v2"),
        ("50-shades", "shades"),
        ("--", "model"),
        ("On", "on-model"),
        ("null", "null-model"),
        ("模型", "model"),
        ("x" * 100, "x" * 40),
        ("a" * 39 + "_b", "a" * 39),
    ],
)
def test_the_nearest_name(model: str, name: str) -> None:
    assert kubernetes_name(model) == name


@given(st.text(max_size=80))
def test_always_a_dns_label_and_its_own_nearest(model: str) -> None:
    name = kubernetes_name(model)
    assert DNS_LABEL.fullmatch(name)
    assert len(name) <= 40
    assert kubernetes_name(name) == name
