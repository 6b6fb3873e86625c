"""`optimize serve`, a recommendation on a server of its own, and `optimize restore`, of servers of others."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote
from types import FrameType

from deploy.render import NATIVE_REPOSITORY, REPOSITORY
from deploy.smoke import PORTS
from loadgen.console import SafeConsole
from loadgen.errors import BadInput, UserError
from loadgen.processes import scratch_folder
from model_repo.errors import ServerError
from model_repo.server.hosts import serve_repository
from model_repo.server.options import ServerOptions
from model_repo.server.overrides import restore_all
from model_repo.spec import Protocol
from optimizer.call_options import RestoreOptions, ServeOptions
from optimizer.command.arguments import check_shared_memory
from optimizer.config import OptimizeConfig
from optimizer.errors import explained
from optimizer.machine.hardware import hardware
from optimizer.reports.text import limit_options, loadtest_command, rate_option
from optimizer.run.serving import journals_folder
from optimizer.run.workload_inputs import INPUT_DATA
from optimizer.run_file import endpoint_of, saved_config
from search.records.recommendation import AnyRecommendation, NoRecommendationRecord, RecommendationRecord
from search.records.run_files import RUN_FILE, named_run, read_outcome, read_recommendation


def serve_run(given: ServeOptions) -> None:
    """Serve the repository of a run, and print its address on stdout. Returns after Ctrl-C or SIGTERM."""
    directory, server, port = named_run(given.run), given.server, given.port
    # The repository in a run or bundle that this kind of server can serve; else the folder itself.
    folders = (REPOSITORY,) if server == "embedded" else (NATIVE_REPOSITORY, REPOSITORY)
    repository = next((directory / name for name in folders if (directory / name).is_dir()), directory)
    found, config = _answer(directory, is_served=repository != directory), None
    with suppress(BadInput):  # a bundle, a repository, or a run of another version
        config = saved_config(directory)
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
            urls = {protocol: standing.endpoint.url(protocol) for protocol in PORTS}
            for name in (path.name for path in standing.models):
                console.print(f"{name} is served at {urls['http']} and {urls['grpc']} (Ctrl-C ends it)")
                console.print(f"  {load_test_of(name, urls, directory, found, config, shares=shares)}")
            standing.wait()
    except ServerError as error:
        what, _, fix = str(error).partition("\n")
        raise UserError(what, f"{fix}\n{error.log_tail}".strip()) from error
    except KeyboardInterrupt:
        return  # the usual end


def _answer(directory: Path, *, is_served: bool) -> RecommendationRecord | None:
    """Return the run's recommendation; None for a bundle, a repository, or a run of another version.

    `is_served`: the directory has a repository. Raises BadInput with the end of a run that recommends nothing.
    """
    ended: AnyRecommendation | None = None
    with suppress(BadInput):
        ended = read_outcome(directory)
    if isinstance(ended, NoRecommendationRecord) or (not is_served and (directory / RUN_FILE).is_file()):
        return read_recommendation(directory)
    return ended


def load_test_of(
    name: str,
    urls: Mapping[Protocol, str],
    directory: Path,
    found: RecommendationRecord | None,
    config: OptimizeConfig | None,
    *,
    shares: bool,
) -> str:
    """Return the load test of a served model: at the run's rate under its limits, if the run had some for it."""
    if found is not None and found.model.name == name:
        workload = found.workload.changed(shared_memory="system" if shares else "none")
        tested = found.model_copy(update={"workload": workload})
        return loadtest_command(tested, directory, config, url=urls[workload.protocol])
    rate, limits = rate_option(100.0), "--p99 50ms"
    own = () if found is None else tuple(one for one in found.slo.colocated if one.model == name)
    if own:
        rate, limits = rate_option(own[0].rate_per_s(0.0)), limit_options(own)
    # Of a folder or a large file there is no copy.
    data = next(directory.glob(f"{INPUT_DATA}.*"), config and config.input_data)
    more = " --shared-memory system" if shares else ""
    more += "" if data is None else f" --input-data {quote(str(data))}"
    return f"loadtest {urls['http']} --model {quote(name)} {rate} {limits}{more}"


def restore_servers(given: RestoreOptions) -> None:
    """Restore the configurations that killed runs have left on remote servers, and say which."""
    if given.header_env and given.server_url is None:
        raise BadInput("--header-env needs the server that the header is for.", "Add --server-url URL.")
    only = None if given.server_url is None else endpoint_of(given.server_url, given.header_env)
    console, found = SafeConsole(highlight=False, soft_wrap=True), False
    with explained():
        for text in restore_all(journals_folder(given.cache_dir), only):
            console.print(f"{text} has its own configuration again.")
            found = True
    if not found:
        console.print("No run has left a model with another configuration.")
