"""What a command that failed leaves where its result was asked for: the error, as JSON and as JUnit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from loadgen.errors import UserError


def write_failure(failure: UserError, asked: Mapping[str, Any]) -> None:
    """Print the error for --json, and write it to the files of --output and --junit; other files stay as they are.

    `asked` are the values of options by name, as far as they were read. What cannot be written is no other error.
    """
    files = {name: path for name in ("output", "junit") if (path := asked.get(name)) is not None}
    if not files and not asked["json"]:
        return
    from loadgen.console import print_result
    from loadgen.files import write_atomically
    from loadgen.reports.write import failure_xml

    error = {"exit_code": failure.exit_code, "status": failure.status, "what": failure.what, "fix": failure.fix}
    text = json.dumps({"error": error}, indent=2) + "\n"
    if asked["json"]:
        print_result(lambda: text)
    for name, path in files.items():
        with suppress(OSError, ValueError):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file() or not path.exists():
                write_atomically(path, failure_xml(failure) if name == "junit" else text)
