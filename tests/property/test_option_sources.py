"""For every option of both commands: flag before environment before file before default."""

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
from hypothesis import given, settings
from hypothesis import strategies as st

import loadgen.cli
import optimizer.call_options
import optimizer.cli
from loadgen.options.command import read_options
from loadgen.options.declare import OptionField, option_fields
from loadgen.options.load_test import LoadTestOptions
from loadgen.options.sources import prefix_of, take_variables
from optimizer.config import SERVER_URL_VARIABLE, STORAGE_VARIABLE

COMMANDS: dict[str, tuple[Mapping[str, OptionField], Any]] = {
    "optimize": (optimizer.call_options.OPTIONS, typer.main.get_command(optimizer.cli.app)),
    "loadtest": (option_fields(LoadTestOptions), typer.main.get_command(loadgen.cli.app)),
}
OPTIONS = [(command, one) for command, (declared, _) in COMMANDS.items() for one in declared.values()]
SETTABLE = [(command, one) for command, one in OPTIONS if not one.flag_only]
SOURCES = [set(some) for n in range(4) for some in itertools.combinations(("flag", "environment", "file"), n)]
WORDS = st.text(st.characters(categories=("L", "N"), include_characters="-_.%="), min_size=1).filter(str.strip)
TRUTHS = {"true": True, "Yes": True, "on": True, "1": True, "FALSE": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True)
class Drawn:
    """A value as its flag would have it, and how it is spelled."""

    value: Any
    texts: tuple[str, ...]


@st.composite
def drawn(draw: st.DrawFn, one: OptionField) -> Drawn:
    if one.kind is bool:
        text = draw(st.sampled_from(sorted(TRUTHS)))
        return Drawn(TRUTHS[text], (text,))
    values: dict[type, st.SearchStrategy[Any]] = {
        int: st.integers(-(10**6), 10**6),
        float: st.floats(allow_nan=False, allow_infinity=False),
        Path: WORDS.map(Path),
        str: WORDS,
    }
    found = draw(st.lists(values[one.kind], min_size=1, max_size=3 if one.repeatable else 1))
    return Drawn(tuple(found) if one.repeatable else found[0], tuple(map(str, found)))


@pytest.fixture(scope="module", autouse=True)
def nothing_set() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in (STORAGE_VARIABLE, SERVER_URL_VARIABLE):
            patch.delenv(name, raising=False)
        yield


def read(command: str, words: list[str], variables: dict[str, str]) -> tuple[Any, Any]:
    declared, parser = COMMANDS[command]
    with parser.make_context(command, words, resilient_parsing=False) as context:
        return read_options(command, declared, context, variables)


def relative_to(folder: Path, command: str, one: OptionField, value: Any) -> Any:
    if one.kind is Path:
        return folder / value
    return str(folder / value) if command == "optimize" and one.name in ("model", "repository") else value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elsewhere")


@pytest.mark.parametrize(("command", "one"), SETTABLE, ids=[f"{command}-{one.name}" for command, one in SETTABLE])
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_a_flag_goes_before_the_environment_and_that_before_the_file(
    command: str, one: OptionField, folder: Path, data: st.DataObject
) -> None:
    values = {source: data.draw(drawn(one), label=source) for source in ("file", "environment", "flag")}
    path = folder / "tune.yaml"
    texts = [json.dumps(text, ensure_ascii=False) for text in values["file"].texts]
    path.write_text(f"{one.name}: {'[' + ', '.join(texts) + ']' if one.repeatable else texts[0]}\n")
    for sources in SOURCES:
        words: list[str] = []
        variables: dict[str, str] = {}
        expected = one.default, None
        if "file" in sources:
            words += ["--config", str(path)]
            expected = relative_to(folder, command, one, values["file"].value), "file"  # type: ignore[assignment]
        if "environment" in sources:
            variables[prefix_of(command) + one.name.upper()] = "\n".join(values["environment"].texts)
            expected = values["environment"].value, "environment"  # type: ignore[assignment]
        if "flag" in sources:
            value, texts = values["flag"].value, values["flag"].texts  # type: ignore[assignment]
            expected = True if one.kind is bool else value, "flag"  # type: ignore[assignment]
            if one.kind is bool:
                words += [one.flag]
            elif one.argument:
                words += ["--", *texts]
            else:
                words += [f"{one.flag}={text}" for text in texts]
        values_read, origins = read(command, words, variables)
        origin = origins.get(one.name)
        assert (values_read[one.name], origin and origin.kind) == expected
        assert origins.keys() - {"config"} == ({one.name} if sources else set())


def test_what_no_file_and_no_variable_may_set() -> None:
    only = {(command, one.name) for command, one in OPTIONS if one.flag_only}
    both = {(command, name) for command in COMMANDS for name in ("config", "debug", "version", "print_completion")}
    assert only == {
        *both,
        ("loadtest", "yes"),
        ("loadtest", "insecure"),
        ("loadtest", "worker"),
        ("optimize", "resume"),
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_child_processes_inherit_no_variable_of_an_option(command: str) -> None:
    environment = {prefix_of(one) + option.name.upper(): "1" for one, option in OPTIONS}
    taken = take_variables(environment, command)
    assert environment == {}
    assert len(taken) == len([one for one, _ in OPTIONS if one == command])
    assert all(name.startswith(prefix_of(command)) for name in taken)
    assert not [name for name in os.environ if name.startswith(("TRITUNE_OPTIMIZE_", "TRITUNE_LOADTEST_"))]
