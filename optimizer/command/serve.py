"""`optimize serve`, a recommendation on a server of its own, and `optimize restore`, of servers of others."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from shlex import quote
from types import FrameType

from deploy.render import NATIVE_REPOSITORY, REPOSITORY
from loadgen.console import SafeConsole
from loadgen.errors import BadInput, UserError
from loadgen.processes import scratch_folder
from model_repo.errors import ServerError
from model_repo.server.options import ServerOptions
from model_repo.server.overrides import restore_all
from model_repo.server.static_server import serve_repository
from optimizer.call_options import RestoreOptions, ServeOptions
from optimizer.command.arguments import check_shared_memory
from optimizer.errors import explained
from optimizer.machine.hardware import hardware
from optimizer.run.serving import journals_folder
from optimizer.run.workload_inputs import INPUT_DATA
from optimizer.run_file import endpoint_of, saved_config


def serve_run(given: ServeOptions) -> None:
    """Serve the repository of a run, and print its address on stdout. Returns after Ctrl-C or SIGTERM."""
    directory, server, port = given.run, given.server, given.port
    repository = _repository(directory, server)
    if port is not None and port == given.grpc_port:
        raise BadInput(f"--port {port} and --grpc-port {port} are the same.", "Give each a port of its own.")
    check_shared_memory(given.shared_memory, server)
    shares = given.shared_memory == "system"

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)  # ends it as Ctrl-C does, so that nothing is left behind
    try:
        with (
            scratch_folder("serve") as folder,
            serve_repository(
                repository,
                ServerOptions(
                    run_dir=folder,
                    kind=server,
                    shared_memory=shares,
                    http_port=port,
                    grpc_port=given.grpc_port,
                    gpu=bool(hardware().gpus),
                ),
            ) as standing,
        ):
            console = SafeConsole(highlight=False, soft_wrap=True)
            data = next(directory.glob(f"{INPUT_DATA}.*"), None)
            with suppress(BadInput):  # a bundle, or a run of another version
                data = data or saved_config(directory).input_data  # of a folder or a large file there is no copy
            for name in standing.model_names:
                http_url, grpc_url = standing.endpoint.url("http"), standing.endpoint.url("grpc")
                console.print(f"{name} is served at {http_url} and {grpc_url} (Ctrl-C ends it)")
                more = " --shared-memory system" if shares else ""
                more += "" if data is None else f" --input-data {quote(str(data))}"
                console.print(f"  loadtest {http_url} --model {name} --rate 100 --p99 50ms{more}")
            standing.wait()
    except ServerError as error:
        what, _, fix = str(error).partition("\n")
        raise UserError(what, f"{fix}\n{error.log_tail}".strip()) from error
    except KeyboardInterrupt:
        return  # the usual end


def _repository(directory: Path, server: str) -> Path:
    """Return the repository in a run or bundle that this kind of server can serve; else the folder itself."""
    folders = (REPOSITORY,) if server == "embedded" else (NATIVE_REPOSITORY, REPOSITORY)
    return next((directory / name for name in folders if (directory / name).is_dir()), directory)


def restore_servers(given: RestoreOptions) -> None:
    """Restore the configurations that killed runs have left on remote servers, and say which."""
    if given.header_env and given.server_url is None:
        raise BadInput("--header-env needs the server that the header is for.", "Add --server-url URL.")
    only = None if given.server_url is None else endpoint_of(given.server_url, given.header_env)
    with explained():
        found = restore_all(journals_folder(given.cache_dir), only)
    console = SafeConsole(highlight=False, soft_wrap=True)
    for text in found:
        console.print(f"{text} has its own configuration again.")
    if not found:
        console.print("No run has left a model with another configuration.")
