"""Start the embedded tritonserver in a container: `python -m model_repo.server.entrypoint ARGUMENTS`.

The arguments are tritonserver's own. It replaces this process, so that the container's signals reach it. Its
backend folder, and the Python environment of the models, go to a new folder in the temporary directory.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from model_repo.errors import LauncherMissing
from model_repo.server.launchers import container_launch


def main(arguments: Sequence[str]) -> NoReturn:
    """Become tritonserver. Exits with 1 and two lines if it is not installed."""
    folder = Path(tempfile.mkdtemp(prefix="tritune-"))
    try:
        launch = container_launch(arguments, folder)
    except LauncherMissing as error:
        sys.exit(str(error))
    os.chdir(launch.folder)  # Triton's Python backend imports from there before anything else
    os.execve(launch.command[0], launch.command, dict(launch.environment))  # noqa: S606 - a program of ours


if __name__ == "__main__":
    main(sys.argv[1:])
