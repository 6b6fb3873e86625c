"""Carry out a Dockerfile of a bundle without Docker: its lines, in an empty virtual environment."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PLACES = ("USER", "FROM", "ENV")
"""Instructions that mean nothing outside of a container. `ENV` keeps pip from its cache, which tests use."""


@dataclass(frozen=True)
class Installed:
    """An environment made by a recipe, and what the container would start in it."""

    prefix: Path
    entrypoint: list[str]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a container: nothing of ours but the path of its programs."""
        return {"PATH": f"{self.prefix / 'bin'}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}

    @property
    def command(self) -> list[str]:
        """Return the entrypoint with the path of its program."""
        program, *arguments = self.entrypoint
        return [str(self.prefix / "bin" / program), *arguments]


def carry_out(recipe: Path, folder: Path) -> Installed:
    """Run the recipe's lines in a new environment in `folder`; files are copied from next to the recipe."""
    prefix, install = folder / "environment", folder / "install"
    subprocess.run([sys.executable, "-m", "venv", prefix], check=True, timeout=120)
    install.mkdir()
    entrypoint: list[str] = []
    for word, rest in instructions(recipe.read_text()):
        if word == "COPY":
            *sources, target = rest.split()
            assert target == "./"
            for source in sources:
                shutil.copy(recipe.parent / source, install)
        elif word == "RUN":
            path = f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}"
            environment = {**os.environ, "PATH": path, "VIRTUAL_ENV": str(prefix)}
            subprocess.run(["bash", "-ec", rest], cwd=install, env=environment, check=True, timeout=280)
        elif word == "ENTRYPOINT":
            entrypoint = json.loads(rest)
        else:
            assert word in (*PLACES, "WORKDIR"), word
    shutil.rmtree(install)
    return Installed(prefix, entrypoint)


def instructions(text: str) -> list[tuple[str, str]]:
    """Return (instruction, the rest) of each line; lines that go on are joined."""
    lines = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", text)).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line)]
