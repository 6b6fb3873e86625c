"""The Dockerfiles of examples/docker: what they copy and install exists, and nothing else goes into an image."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from recipes import instructions

from deploy.images import image_for

ROOT = Path(__file__).parents[2]
FILES = {path.name.partition(".")[0]: path.read_text() for path in (ROOT / "examples" / "docker").iterdir()}
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
LET_THROUGH = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}


def parts(name: str, word: str) -> list[str]:
    """What follows each instruction of this name."""
    return [rest for found, rest in instructions(FILES[name]) if found == word]


@pytest.mark.parametrize("name", FILES)
def test_an_image_holds_the_installation_alone_and_runs_as_nobody_in_particular(name: str) -> None:
    (build, stage), (base,) = (line.split(" AS ") for line in parts(name, "FROM"))
    assert build == base
    assert re.fullmatch(r"[\w./-]+:\d+\.\d+[\w.-]+", base)
    last = FILES[name].split(f"FROM {base}")[-1]
    assert re.findall(r"^(?:COPY|USER|RUN|ADD) .*", last, re.MULTILINE) == [
        f"COPY --from={stage} /opt/tritune /opt/tritune",
        "USER 1000:1000",
    ]


@pytest.mark.parametrize("name", FILES)
def test_what_is_copied_and_installed_exists(name: str) -> None:
    copied = [line.split()[0] for line in parts(name, "COPY") if not line.startswith("--from")]
    assert "." in copied
    assert {source for source in copied if source != "."} <= LET_THROUGH
    installs = [
        shlex.split(line.partition("pip install ")[2]) for line in parts(name, "RUN") if "pip install" in line
    ]
    words = [word for line in installs for word in line]
    assert {words[at + 1] for at, word in enumerate(words) if word in ("-r", "-c")} <= LET_THROUGH
    own = [word for word in words if word.startswith(".")]
    assert len(own) == 1
    assert set(Requirement(f"x{own[0][1:]}").extras) <= PROJECT["optional-dependencies"].keys()


def test_a_builder_gets_the_packages_and_what_their_installation_reads() -> None:
    read = {PROJECT["readme"], *(name for name in PROJECT["license-files"] if "/" not in name)}
    files = {"pyproject.toml", "constraints.txt", "requirements-cpu.txt", *read}
    assert {name for name in LET_THROUGH if (ROOT / name).is_file()} == files
    packages = SETTINGS["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name for name in LET_THROUGH if (ROOT / name).is_dir()} == {name.rstrip("*") for name in packages}
    assert {name for name in LET_THROUGH if not (ROOT / name).exists()} == set()


def test_the_python_of_the_cpu_image_is_supported() -> None:
    (version,) = set(re.findall(r"python:([\d.]+)-", FILES["cpu"]))
    assert version in SpecifierSet(PROJECT["requires-python"])


def test_the_tensorrt_of_the_triton_image_is_that_of_its_release() -> None:
    (pinned,) = re.findall(r"tensorrt==([\d.]+)\.\*", FILES["triton"])
    assert image_for(backend="tensorrt", tensorrt_version=pinned, opset=1) in parts("triton", "FROM")
