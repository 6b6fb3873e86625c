"""What a server that others run makes of configurations: a real Triton, and the fake of the unit tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_remote import fake_remote
from own_repositories import python_model
from server_kinds import open_server

from model_repo.errors import RequestRefused
from model_repo.server import control
from model_repo.spec import Endpoint

pytestmark = pytest.mark.system


@pytest.fixture(params=["fake", "triton"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Endpoint]:
    if request.param == "fake":
        with fake_remote("first") as remote:
            yield remote.endpoint
    else:
        with open_server(tmp_path) as (endpoint, repository):
            python_model(repository, "first")
            control.load_model(endpoint, "first", timeout_s=60.0)
            yield endpoint


def test_a_configuration_is_kept_and_completed(endpoint: Endpoint) -> None:
    own = control.model_config(endpoint, "first")
    mark = {"tritune_run": {"string_value": "1"}}
    groups = [{"count": 2, "kind": "KIND_CPU"}]
    sent = {**own, "dynamic_batching": {}, "parameters": mark, "instance_group": groups}
    control.load_model(endpoint, "first", timeout_s=60.0, config=sent)
    now = control.model_config(endpoint, "first")
    assert now["parameters"] == mark
    assert [(group["count"], group["name"] != "") for group in now["instance_group"]] == [(2, True)]
    assert now["dynamic_batching"]["preferred_batch_size"] == [8]
    changed = ("dynamic_batching", "parameters", "instance_group")
    assert {name: value for name, value in now.items() if name not in changed} == {
        name: value for name, value in own.items() if name not in changed
    }
    control.load_model(endpoint, "first", timeout_s=60.0, config=own)
    assert control.model_config(endpoint, "first") == own
    assert "first" in control.served_models(endpoint)


def test_a_model_that_is_not_loaded_has_none(endpoint: Endpoint) -> None:
    with pytest.raises(RequestRefused) as refused:
        control.model_config(endpoint, "nobody")
    assert refused.value.status == 404
