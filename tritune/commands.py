"""Start the console commands, once Python finds our packages and no others of their names."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("deploy", "loadgen", "model_repo", "optimizer", "search")
_HERE = Path(__file__).resolve().parents[1]


class ForeignPackage(ImportError):
    """Python finds another package under the name of one of ours. It has the fields of `tritune.Error`."""

    status = "bad_input"
    exit_code = 2

    def __init__(self, name: str, place: str) -> None:
        self.what = f"{place} hides tritune's own package {name}, so tritune cannot start."
        self.fix = "Rename it, or take its folder off Python's path: PYTHONPATH, or the folder of your script."
        super().__init__(name, place)  # both, so that it can be pickled

    def __str__(self) -> str:
        return f"{self.what}\n{self.fix}"


def check_packages() -> None:
    """Raise ForeignPackage if an import of one of our packages finds another one. Imports nothing."""
    for name in PACKAGES:
        try:
            found = find_spec(name)
        except ValueError:  # a module that was made without a file
            found = None
        ours = _HERE / name / "__init__.py"
        if found is None or found.origin is None or Path(found.origin).resolve() != ours:
            place = found and (found.origin or next(iter(found.submodule_search_locations or ()), None))
            raise ForeignPackage(name, place or f"A module {name}")


def optimize() -> None:
    """Run the command `optimize`, and exit with its exit code."""
    _refuse_foreign_packages()
    from optimizer.cli import main

    main()


def loadtest() -> None:
    """Run the command `loadtest`, and exit with its exit code."""
    _refuse_foreign_packages()
    from loadgen.cli import main

    main()


def _refuse_foreign_packages() -> None:
    try:
        check_packages()
    except ForeignPackage as error:  # printed here, as nothing of ours can be imported
        sys.stderr.write(f"error: {error.what}\n       {error.fix}\n")
        sys.exit(error.exit_code)
