"""A knob that tritune does not have, in one file: the copies of a model's weights that are kept in the cache."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from recommendations import recommendation
from simulated_bench import SimulatedBench, default_service_s
from spaces import two_core_space
from virtual_search import search_on

from model_repo.repository.config_pbtxt import parse_config_pbtxt
from model_repo.repository.write import write_repository
from model_repo.spec import ServingConfig
from optimizer.reports.tables import comparison
from search.knobs import KNOBS, Knob
from search.simulator.service_times_file import read_curves
from search.space import knobs_of
from search.study.run import SEARCH_FILE
from search.trials.trial import config_from_record

pytestmark = pytest.mark.slow

NAME = "cached_copies"


def copies(config: ServingConfig) -> int:
    return int(dict(config.backend_options).get(NAME, "1"))


CACHE = Knob(
    name=NAME,
    label="cached copies",
    values=lambda of: (1, 2, 3) if of.cores > 1 else (1,),
    render=lambda config, count: replace(config, backend_options=((NAME, str(count)),)),
    read=copies,
    in_profile_key=True,
    text=lambda config: str(copies(config)),
    said=lambda config: f"{copies(config)} copies",
)


def test_a_search_varies_profiles_writes_and_reports_a_new_knob(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KNOBS, NAME, CACHE)

    def service_s(config: ServingConfig, size: int) -> float:
        return default_service_s(config, size) * {1: 1.0, 2: 0.6, 3: 0.9}[copies(config)]

    space = two_core_space(tmp_path)
    store, certified, _ = search_on(SimulatedBench(service_s=service_s), space, tmp_path)
    assert certified is not None
    winner = certified.winner
    assert copies(winner.served) == 2
    assert copies(space.baseline()) == 1
    assert knobs_of(winner.served) in list(space.points())
    assert json.loads((tmp_path / SEARCH_FILE).read_bytes())["knobs"][NAME] == [1, 2, 3]
    assert {kind[-1] for kind in read_curves(tmp_path)} == {1, 2, 3}
    assert {trial.params[NAME] for trial in store.study.get_trials()} >= {1, 2}
    assert config_from_record(winner.config, space.engines) == winner.served
    folder = write_repository(tmp_path / "repository", winner.served)
    message = parse_config_pbtxt((folder / "config.pbtxt").read_text())
    assert message.parameters[NAME].string_value == "2"
    table = comparison(recommendation(winner=winner.record, baseline=None))
    assert [cells[1].text for cells in table.rows if cells[0].text == CACHE.label] == ["2"]
