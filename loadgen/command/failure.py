"""What a command that failed leaves where its result was asked for: the error, as JSON and as JUnit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from loadgen.errors import UserError
from loadgen.files import write_atomically
from loadgen.printable import printable

_JUNIT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="loadtest" tests="1" failures="0" errors="1">
<testcase classname="loadtest" name="the answer as a whole" time="0"><error message={}>{}</error></testcase>
</testsuite></testsuites>
"""


def write_failure(failure: UserError, asked: Mapping[str, Any]) -> None:
    """Print the error for --json, and write it to the files of --output and --junit; other files stay as they are.

    `asked` are the values of options by name, as far as they were read. What cannot be written is no other error.
    """
    text = json.dumps({"error": {name: getattr(failure, name) for name in ("exit_code", "status", "what", "fix")}})
    if asked["json"]:
        from loadgen.console import print_result  # brings in rich

        print_result(lambda: f"{text}\n")
    what, fix = (printable(line, lines=True) for line in (failure.what, failure.fix))
    for name, document in (("output", f"{text}\n"), ("junit", _JUNIT.format(quoteattr(what), escape(fix)))):
        path = asked.get(name)
        with suppress(OSError, ValueError):
            if path is not None and (path.is_file() or not path.exists()):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, document)
