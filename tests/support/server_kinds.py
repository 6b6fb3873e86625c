"""Make servers of the kinds `local` and `docker` from the embedded one, to be found on PATH."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from model_repo.server import launchers
from model_repo.server.hosts import ProcessHost
from model_repo.server.options import ServerOptions
from model_repo.server.process import Launch
from model_repo.spec import Endpoint

PROGRAM = """#!/bin/sh
export VIRTUAL_ENV="{prefix}" PATH="{prefix}/bin:$PATH"
exec "{server}" --backend-directory="{backends}" "$@"
"""

DOCKER = '''#!{python}
"""`docker run` without a container: a volume is the folder itself, so arguments get its name outside."""
import os, sys
words = sys.argv[1:]
if words[0] != "run":
    sys.exit(0)
image = words.index({image!r})
volumes = [words[at + 1].split(":") for at, word in enumerate(words[:image]) if word == "--volume"]
command = words[image + 1 :]
for outside, inside, *_ in volumes:
    command = [word.replace(inside, outside) if inside in word else word for word in command]
os.execvp(command[0], command)
'''


@contextmanager
def tritonserver_on_path(folder: Path) -> Iterator[None]:
    """The embedded program on PATH, as NVIDIA's container has its own. `folder` must have no blank in its name."""
    wheel = launchers._embedded_folder()
    backends = launchers._link_backends(wheel, folder / "backends")
    program = folder / "bin" / "tritonserver"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM.format(server=wheel / "bin" / "tritonserver", backends=backends, prefix=sys.prefix))
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(program.parent), prepend=os.pathsep)
        yield


@contextmanager
def open_server(folder: Path, *, completes_config: bool = False) -> Iterator[tuple[Endpoint, Path]]:
    """Start a server as users may: its HTTP port takes control requests from every client."""

    def open_launch(options: ServerOptions, endpoint: Endpoint, folder: Path, token: str) -> Launch:
        launch = launchers.embedded_launch(options, endpoint, folder, token)
        return replace(launch, command=tuple(word for word in launch.command if "-restricted-" not in word))

    options = ServerOptions(run_dir=folder, exit_grace_s=0.1, completes_config=completes_config)
    host = ProcessHost(options, open_launch)
    try:
        yield replace(host.endpoint, control_folder=None), host.repository
    finally:
        host.close()


@contextmanager
def docker_on_path(folder: Path, image: str) -> Iterator[None]:
    """A `docker` that runs the image's command right here, with the embedded program as the image's."""
    with tritonserver_on_path(folder):
        program = folder / "bin" / "docker"
        program.write_text(DOCKER.format(python=sys.executable, image=image))
        program.chmod(0o755)
        yield
