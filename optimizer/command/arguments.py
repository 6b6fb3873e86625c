"""Turn the options of `optimize`, or of `--resume`, into a run's configuration; errors name the option."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from loadgen.errors import BadInput
from loadgen.options.command import Values
from loadgen.options.declare import made_of
from loadgen.options.sources import Origins, note_on
from loadgen.printable import printable
from loadgen.spec.limits import LatencyLimit, quantile_option
from loadgen.spec.target import headers_from_options
from optimizer.call_options import OF_THIS_CALL, CallOptions
from optimizer.config import KEPT, SERVER_URL_VARIABLE, STORAGE_VARIABLE, OptimizeConfig
from optimizer.model_source import source_from_text, stem_of
from optimizer.run.own_model import check_own
from optimizer.run.workload_inputs import check_traffic
from optimizer.run_file import objective_of, saved_config
from search.records.run_files import named_run
from search.redact import has_password, is_storage_url, shown_storage


def _refuse_implied(limits: Sequence[LatencyLimit]) -> None:
    """Raise BadInput for a limit that another one implies: it would only cost confidence."""
    for limit in limits:
        for other in limits:
            if limit.quantile < other.quantile and limit.limit_ms >= other.limit_ms:
                name, stricter = (quantile_option(one.quantile) for one in (limit, other))
                raise BadInput(
                    f"--{name} {limit.limit_ms:g}ms follows from --{stricter} {other.limit_ms:g}ms.",
                    f"Give --{name} a shorter duration, or leave it out.",
                )


def config_of_call(call: CallOptions, values: Values, origins: Origins) -> tuple[OptimizeConfig, list[str]]:
    """Return the configuration of a new run, or of the one to go on with, and notes. Raises BadInput."""
    check_storage(values["storage"], origins)
    make = config_from_options if call.resume is None else resumed_config
    return make(values, origins)


def config_from_options(values: Values, origins: Origins) -> tuple[OptimizeConfig, list[str]]:
    """Return the configuration, and notes on assumptions. Raises BadInput."""
    if values["model"] is None:
        what = "FILE.onnx" if values.get("repository") is None else "NAME, with the name of a model there"
        raise BadInput("No model was given.", f"Add --model {what}")
    notes: list[str] = []
    made: dict[str, Any] = {"origins": recorded(origins)}
    if values.get("repository") is not None:
        made["model"] = _name_in_repository(values["model"], origins)
    if values["output"] is None:
        stem = stem_of(made.get("model") or source_from_text(values["model"]))
        made["output"] = Path("runs").absolute() / f"{stem}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    config = made_of(OptimizeConfig, values, notes.append, **made)
    _refuse_implied(config.limits)
    _check_together(config, values)
    check_own(config, origins)
    if config.trace is not None and "arrivals" in origins:
        raise BadInput("--trace brings its own arrivals.", "Leave --arrivals out.")
    check_traffic(config.arrivals, config.trace)
    return config, notes + note_on(origins)


def _name_in_repository(text: str, origins: Origins) -> str:
    """Return the name of a model of the user's repository. Raises BadInput for what is none."""
    origin, name = origins.get("model"), Path(text).name
    # A file of options has made a path of it, beside the file.
    is_path = "/" in text.rstrip("/") and (origin is None or origin.kind != "file")
    if is_path or name in ("", ".."):
        raise BadInput(
            f"--model {text or repr(text)} is not the name of a model in the repository.",
            "Give the name of its folder there, without a path.",
        )
    return name


def recorded(origins: Origins) -> dict[str, str]:
    """Return the origin of each option's value for the run's record: `default` if it was not given."""
    return {name: printable(origins[name].place) if name in origins else "default" for name in KEPT}


def check_storage(url: str | None, origins: Origins) -> None:
    """Raise BadInput if the storage URL is invalid, or has a password in the arguments.

    Addresses, which may have passwords, are removed from the environment: servers, which run models, would inherit
    them.
    """
    for variable in (STORAGE_VARIABLE, SERVER_URL_VARIABLE):
        os.environ.pop(variable, None)
    if url is not None and not is_storage_url(url):
        raise BadInput(
            f"--storage {shown_storage(url)} is not a storage URL.",
            "Write postgresql://USER@HOST/DATABASE or sqlite:///FILE, with %20 and the like for odd letters.",
        )
    if url is not None and has_password(url) and "storage" in origins and origins["storage"].kind == "flag":
        raise BadInput(
            f"--storage {shown_storage(url)} holds a password, and every user here can read the process list.",
            "Put the URL into the variable TRITUNE_STORAGE, or the password into PGPASSWORD or ~/.pgpass.",
        )


def _check_together(config: OptimizeConfig, values: Values) -> None:
    """Raise BadInput for options that exclude or need each other."""
    server = config.server
    overrides = config.repository is not None and config.server_repository is None
    if server == "remote" and (config.server_url is None or not (overrides or config.server_repository)):
        raise BadInput(
            "--server remote needs to know the server and its model repository.",
            "Add --server-url http://HOST:PORT and --server-repository DIR (the same folder, as seen from here).",
        )
    if server == "remote" and overrides and not (config.yes or values.get("dry_run")):
        raise BadInput(
            "The remote server's own models would get other configurations meanwhile, and full load.",
            "If it serves nobody else, add --yes; or use a test server, with --server-repository DIR.",
        )
    if server != "remote" and config.header_env:
        raise BadInput("--header-env is for a remote server.", "Leave it out.")
    headers_from_options((), config.header_env, os.environ)
    if server != "remote" and config.wait_ready_s is not None:
        raise BadInput(
            f"--wait-ready {values['wait_ready']} is for a remote server, and --server is {server}.",
            "Leave it out: a server that is started here is waited for.",
        )
    if config.max_memory_bytes is not None and server in ("docker", "remote"):
        raise BadInput(
            f"--max-memory {values['max_memory']} cannot be checked: a {server} server hides its memory from us.",
            "Leave --max-memory out, or measure with --server embedded or local.",
        )
    check_rates(config)
    objective_of(config)
    check_shared_memory(config.shared_memory, server)


def check_rates(config: OptimizeConfig) -> None:
    """Raise BadInput if the highest rate is below the usual one."""
    rate, peak_rate = config.rate_to_serve_per_s, config.peak_rate_per_s
    if peak_rate is not None and rate is not None and peak_rate < rate:
        raise BadInput(
            f"--peak-rate {peak_rate:g} is below --rate {rate:g}.", "Give the highest rate as --peak-rate."
        )


def check_shared_memory(kind: str, server: str) -> None:
    """Raise BadInput for shared memory that this server cannot see."""
    if kind != "none" and server in ("docker", "remote"):
        raise BadInput(
            f"--shared-memory {kind} needs a server that sees this machine's /dev/shm; a {server} one does not.",
            "Leave it out, or measure with --server embedded or local.",
        )


FIELDS = {name: one.field for name, one in KEPT.items() if one.may_change}
"""Options that may change when a run goes on, and their fields: no measured trial depends on them."""


def resumed_config(values: Values, origins: Origins) -> tuple[OptimizeConfig, list[str]]:
    """Return the configuration of the run to go on with, changed by the options that may change. Raises BadInput.

    Addresses are read again, because their passwords were not saved. TRITUNE_STORAGE and TRITUNE_SERVER_URL may be
    set for other runs, and so never cause a refusal.
    """
    directory = named_run(values["resume"])
    given = {name: one for name, one in origins.items() if name not in KEPT or one.place != KEPT[name].variable}
    for name, origin in given.items():
        if name not in FIELDS and name not in OF_THIS_CALL:
            written = origin.written(name)
            raise BadInput(
                f"{written} cannot be given with --resume: the run in {directory} has its own already.",
                f"Leave {written} out, or start a new run without --resume.",
            )
    config = saved_config(directory.absolute())
    _check_sense(config, given)
    notes = [f"Going on with the run in {directory}."]
    changes = {FIELDS[name]: KEPT[name].value(values[name], notes.append) for name in given.keys() & FIELDS.keys()}
    again = {"storage": values["storage"], "server_url": values["server_url"] or config.server_url}
    now = {name: place for name, place in recorded(origins).items() if name in FIELDS and name in origins}
    changed = replace(config, **{**changes, **again, "origins": config.origins | now})
    check_rates(changed)
    return changed, notes + note_on(origins)


def _check_sense(config: OptimizeConfig, given: Mapping[str, object]) -> None:
    """Raise BadInput for options that may change, but not in this run."""
    if "rate" in given and objective_of(config).rate_per_s is not None:
        raise BadInput(
            f"--rate cannot change with --resume: the run compares at {config.rate_to_serve_per_s:g}/s.",
            "Leave --rate out, or start a new run without --resume.",
        )
    if "server_url" in given and config.server != "remote":
        raise BadInput(
            f"--server-url is for a remote server, and the run measures on one of the kind {config.server}.",
            "Leave --server-url out, or start a new run without --resume.",
        )
