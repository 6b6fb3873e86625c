"""Read many models in one process, like `optimize`, but without a new process for each."""

import json
import os
import select
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from loadgen.errors import UserError
from loadgen.printable import printable
from optimizer.batching.kept import settled
from optimizer.child import ChildLimits, begin_as_child, environment_of_child
from optimizer.model.onnx_model import read_model

MEMORY_BYTES = 3 << 30
DEADLINE_S = 120.0
"""A reader that takes longer counts as hung: none of these models takes nearly as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How reading ended: `read`, `refused` (a UserError), `raised` (anything else), `crashed` or `hung`."""

    kind: str
    text: str = ""

    @property
    def told(self) -> bool:
        """True if the user gets a result: a model, or two lines with exit code 2."""
        return self.kind == "read" or (self.kind == "refused" and len(self.text.splitlines()) == 2)


class ModelReader:
    """A process that reads one model after the other; it is restarted after a crash."""

    def __enter__(self) -> Self:
        self._process: subprocess.Popen[str] | None = None
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def read(self, path: Path, *, whole: bool = True, deadline_s: float = DEADLINE_S) -> Outcome:
        """Read a model; `whole`: its shapes and batch too, as `prepare` does."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment_of_child(),
                start_new_session=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([os.fsencode(path).decode("latin-1"), whole]) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], deadline_s)[0]:
            self._end()
            return Outcome(kind="hung")
        if line := process.stdout.readline():
            return Outcome(**json.loads(line))
        code = process.wait()
        self._end()
        return Outcome(kind="crashed", text=str(code))

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _outcome(path: Path, *, whole: bool) -> Outcome:
    try:
        with tempfile.TemporaryDirectory() as folder:
            if whole:
                settled(path, {}, Path(folder))
            else:
                read_model(path)
    except UserError as error:
        shown = f"{printable(error.what)}\n{printable(error.fix)}"  # as the command shows it
        return Outcome(kind="refused" if error.exit_code == 2 else "raised", text=shown)
    except MemoryError:
        return Outcome(kind="refused", text="more memory than it may have\nas `call_limited` says")
    except Exception:
        return Outcome(kind="raised", text=traceback.format_exc())
    return Outcome(kind="read")


def _serve() -> None:
    begin_as_child(ChildLimits(memory_bytes=MEMORY_BYTES))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name, whole = json.loads(line)
        outcome = _outcome(Path(os.fsdecode(name.encode("latin-1"))), whole=whole)
        answers.write(json.dumps({"kind": outcome.kind, "text": outcome.text}) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
