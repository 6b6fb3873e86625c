"""The process that executes a model's batches for our own Triton backend: `python3 slots_model.py DEVICE`.

Copied as it is to `<model>/1/slots_model.py`, next to the folder `tritune_gpu`, so it imports nothing else of
ours. File 0 is the model's configuration, Triton's JSON; file 3 is a socket over which the server hands one socket
per slot. It ends with the server, or when the server closes file 3.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

CONTROL = 3


def main(device: int) -> None:
    """Load the engine, and start a thread for each slot that the server hands over."""
    os.closerange(CONTROL + 1, 4096)  # what the server has open is not ours
    with os.fdopen(0, "rb") as file:
        config = json.loads(file.read())
    control = socket.socket(fileno=CONTROL)
    opened: Any = None
    failure: Exception | None = None
    try:
        from tritune_gpu.opening import open_slots

        opened = open_slots(Path(__file__).parent, config, device=device)
    except Exception as error:
        traceback.print_exc()
        failure = error
    while True:
        _, files, _, _ = socket.recv_fds(control, 1, 1)
        if not files:
            break
        connection = socket.socket(fileno=files[0])
        threading.Thread(target=serve, args=(connection, opened, failure), daemon=True).start()
    sys.stderr.flush()
    os._exit(0)  # a thread may be in a call of the driver that does not return


def serve(connection: socket.socket, opened: Any, failure: Exception | None) -> None:
    """Serve a slot to its end, and give its memory back."""
    from tritune_gpu.slots import send_error, serve_slot

    with connection, contextlib.suppress(ConnectionError):
        if failure is not None:
            send_error(connection, failure)
            return
        try:
            slot = opened()
        except Exception as error:
            traceback.print_exc()
            send_error(connection, error)
            return
        with contextlib.closing(slot):
            serve_slot(connection, slot.tensors, slot.memory, slot.runner, slot.sizes)


if __name__ == "__main__":
    main(int(sys.argv[1]))
