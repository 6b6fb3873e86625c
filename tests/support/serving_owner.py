"""A program that serves a model until it is killed: the victim of the tests of server lifetimes.

Usage: serving_owner.py FOLDER. Prints the pids of the server and of its supervisor once the model is loaded, then
sleeps. Ctrl-C ends it in the ordinary way.
"""

import sys
import time
from pathlib import Path

from engines import cnn_engine

from model_repo.server.options import ServerOptions
from model_repo.server.triton import serve
from model_repo.spec import ServingConfig

folder = Path(sys.argv[1])
try:
    with serve(ServerOptions(run_dir=folder, exit_grace_s=0.1)) as server:
        server.load(ServingConfig(engine=cnn_engine(folder), max_batch_size=2, instance_count=2))
        process = server._host._process  # type: ignore[attr-defined]
        print(process.pid, process._supervisor.pid, flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    print("stopped in order", flush=True)
