"""The model that is loaded, its request headers, and the permissions of a remote worker."""

from __future__ import annotations

import base64
import html
import ipaddress
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote_plus, urlsplit

from loadgen.errors import BadInput, LoadError, PlanError
from loadgen.printable import printable
from loadgen.spec.addresses import parsed_address, plain_address, shown_address

_QUERY = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:/?%-]*")
_HARMLESS = "api-version="


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The model under load, and its address. `url`: http://, https://, grpc:// or grpcs://.

    `query`, of an address over HTTP, and `headers` travel with every request and may hold secrets: they are in no
    repr; `Host` among the headers names the server in place of the address, as an ingress needs it. `ca_cert` is
    a PEM file that replaces the system's authorities; `insecure` accepts any certificate. `client_cert` is a PEM
    file with the client's own certificate; its key is in `client_key`, None: in the same file. `server_name` is
    the name for SNI and for the check of the certificate; None: the address. `metrics_url` is where Triton reports
    GPU utilization, usually http://HOST:8002/metrics; None: it is not read.
    """

    url: str
    model_name: str
    model_version: str = ""
    query: str = field(default="", repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca_cert: Path | None = None
    insecure: bool = False
    client_cert: Path | None = None
    client_key: Path | None = None
    server_name: str | None = None
    metrics_url: str | None = None

    def __post_init__(self) -> None:
        _check_text("the address", self.url)
        if self.metrics_url is not None and not (plain_address(self.metrics_url) or "").startswith("http"):
            raise PlanError(f"{shown_address(self.metrics_url)} is not an address.\nUse http://HOST:8002/metrics.")
        shown, parts = shown_address(self.url), parsed_address(self.url)
        if parts is None or parts.scheme not in ("http", "https", "grpc", "grpcs"):
            raise PlanError(
                f"{shown} is not an address loadgen can send to.\n"
                "Use http://, https://, grpc:// or grpcs://, a host, and a port."
            )
        if "@" in parts.netloc:
            raise PlanError(
                f"the address of {parts.hostname} holds a user name or password.\nSend them as a header instead."
            )
        if parts.query or parts.fragment or ((parts.path.strip("/") or self.query) and not self.is_http):
            raise PlanError(
                f"{shown} holds more than an address.\nGive the server's address; the model has its own option."
            )
        if not _QUERY.fullmatch(self.query):
            raise PlanError(f"the query of {shown} has odd characters.\nWrite them as %20 and the like.")
        if not self.model_name:
            raise PlanError(f"no model is named for {shown}.\nGive the model to load.")
        for name, value in self.headers:
            if any(character in name + value for character in "\r\n\0") or not name.strip() or ":" in name:
                raise PlanError(f"the header {name!r} holds a line break or has no proper name.\nRemove it.")
            _check_text("a header", name + value)
        if sum(name.lower() == "host" for name, _ in self.headers) > 1:
            raise PlanError("the header Host is given more than once.\nGive the name of one server.")
        _check_text("the model's name or version", self.model_name + self.model_version)
        self._check_tls(shown)

    def _check_tls(self, shown: str) -> None:
        if not self.is_tls and (self.client_cert or self.client_key or self.server_name is not None):
            raise PlanError(
                f"{shown} is not encrypted, so no certificates are used.\n"
                "Use https:// or grpcs://, or leave --client-cert, --client-key and --server-name out."
            )
        if self.client_key and not self.client_cert:
            raise PlanError(
                f"--client-key {self.client_key} has no certificate.\nAdd the certificate with --client-cert."
            )
        if self.server_name is not None and not _is_server_name(self.server_name):
            raise PlanError(
                f"--server-name {printable(self.server_name)!r} is not a host name.\n"
                "Give the name in the server's certificate, without scheme and port."
            )

    @property
    def is_http(self) -> bool:
        """True if requests go over HTTP/1.1; else over gRPC."""
        return urlsplit(self.url).scheme in ("http", "https")

    @property
    def is_tls(self) -> bool:
        """True if the connection is encrypted."""
        return urlsplit(self.url).scheme in ("https", "grpcs")

    @property
    def host(self) -> str:
        """The host alone, without brackets around an IPv6 address."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The port in the address, else the usual one of its scheme (Triton's 8001 for gRPC)."""
        return urlsplit(self.url).port or {"http": 80, "https": 443}.get(urlsplit(self.url).scheme, 8001)

    @property
    def authority(self) -> str:
        """The server as requests name it: a header `Host`, else host and port, without the scheme's usual one."""
        given = next((value for name, value in self.headers if name.lower() == "host"), None)
        if given is not None:
            return given
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"

    @property
    def own_headers(self) -> tuple[tuple[str, str], ...]:
        """The headers without `Host`, which is in `authority`."""
        return tuple((name, value) for name, value in self.headers if name.lower() != "host")

    @property
    def secrets(self) -> tuple[tuple[str, str], ...]:
        """The names and values that no text may show: all headers, and the query but for `api-version`."""
        hidden = [part for part in self.query.split("&") if not part.startswith(_HARMLESS)]
        values = [part.partition("=")[2] or part for part in hidden]
        return (*self.headers, *(("", form) for value in values for form in (value, unquote_plus(value))))

    @property
    def shown(self) -> str:
        """The address with its query, in which `***` stands for each part but `api-version`."""
        parts = [part if part.startswith(_HARMLESS) else "***" for part in self.query.split("&")]
        return f"{self.url}?{'&'.join(parts)}" if self.query else self.url

    @property
    def base_path(self) -> str:
        """The path before `/v2/...`: empty, or that of a gateway such as `/models/a`."""
        return quote(urlsplit(self.url).path.rstrip("/"), safe="/%:@!$&'()*+,;=~")

    @property
    def model_path(self) -> str:
        """The model's path on the server, without a trailing slash."""
        version = f"/versions/{quote(self.model_version, safe='')}" if self.model_version else ""
        return f"{self.base_path}/v2/models/{quote(self.model_name, safe='')}{version}"


def http_head(target: Target, method_and_path: str, fields: Sequence[str]) -> bytes:
    """Return the head of an HTTP request, with the address's query and the user's own headers."""
    query = f"?{target.query}" if target.query else ""
    own = (f"{name}: {value}" for name, value in target.own_headers)
    lines = [f"{method_and_path}{query} HTTP/1.1", f"Host: {target.authority}", *own, *fields, "", ""]
    return "\r\n".join(lines).encode()


def _is_server_name(text: str) -> bool:
    try:
        return bool(re.fullmatch(rb"[\w-]+(\.[\w-]+)*", text.encode("idna")) or ipaddress.ip_address(text))
    except ValueError:
        return False


def _check_text(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PlanError(f"{what} holds bytes that are not UTF-8.\nWrite it in UTF-8.") from error


_OURS = ("connection", "content-length", "inference-header-content-length", "transfer-encoding")
_MIN_SECRET = 4


def headers_from_options(
    headers: Iterable[str], from_environment: Iterable[str], environment: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """`Name: value` options, then `NAME=VARIABLE` options whose value stands in the environment."""
    found: list[tuple[str, str]] = []
    for number, text in enumerate(headers, start=1):
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise BadInput(f"--header number {number} is not a header.", "Write --header 'Name: value'")
        found.append((name.strip(), value.strip()))
    for text in from_environment:
        name, equals, variable = text.partition("=")
        if not equals or not name.strip() or not variable.strip():
            raise BadInput(
                f"--header-env {name} names no variable to read.",
                "Write --header-env NAME=VARIABLE, such as Authorization=STAGING_TOKEN",
            )
        if not environment.get(variable.strip()):
            raise BadInput(
                f"--header-env {name.strip()}: the variable {variable.strip()} is not set, or empty.",
                "Set and export it before the command.",
            )
        found.append((name.strip(), environment[variable.strip()].strip()))
    for name, value in found:
        if not value.isprintable():
            raise BadInput(f"The value of the header {name} holds a line break or the like.", "Remove it.")
        if name.lower() in _OURS:
            raise BadInput(f"The header {name} is set by loadtest itself.", "Leave it out.")
    return tuple(found)


@contextmanager
def errors_without_secrets(headers: Iterable[tuple[str, str]]) -> Iterator[None]:
    """Errors of the load, which may quote the server, with every header value struck out."""
    try:
        yield
    except LoadError as error:
        raise type(error)(without_secrets(str(error), headers)) from None


def without_secrets(text: str, headers: Iterable[tuple[str, str]]) -> str:
    """Return the text without the values of headers and their words: a server may echo its request.

    Their forms in JSON, Python, HTML, a URL and Base64 go as well, and decoded Basic credentials.
    """
    words = {part for _, value in headers for part in (value, *value.split())}
    words |= {part for word in words for part in _credentials(word)}
    words |= {part for word in words if len(word) >= _MIN_SECRET for part in _in_base64(word.encode())}
    secrets = {form for word in words for form in _spellings(word)}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _MIN_SECRET:
            text = text.replace(secret, "***")
    return text


def stranger_text(text: str, headers: Iterable[tuple[str, str]], *, most: int = 500) -> str:
    """Return a server's words to show: first without secrets, then printable, and last cut.

    What was cut before would end with the half of a secret that nothing finds.
    """
    return printable(without_secrets(text, headers), most=most)


def _spellings(word: str) -> tuple[str, ...]:
    for_url = word.replace("+", "-").replace("/", "_")  # of Base64
    return word, for_url, quote(word, safe=""), json.dumps(word)[1:-1], ascii(word)[1:-1], html.escape(word)


def _in_base64(data: bytes) -> Iterator[str]:
    """Yield the bytes in Base64: alone, and the characters of them alone in the middle of any text."""
    yield base64.b64encode(data).decode().rstrip("=")
    for before in range(3):
        whole = base64.b64encode(bytes(before) + data).decode()
        yield whole[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]


def _credentials(word: str) -> tuple[str, ...]:
    """`user:password` and the password, if the word is their Base64."""
    try:
        pair = base64.b64decode(word, validate=True).decode()
    except ValueError:
        return ()
    _, colon, password = pair.partition(":")
    return (pair, password) if colon else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRights:
    """The secret of the test, which the master has as well, and what a worker may load.

    `server` has the headers and the client certificate for it alone; None: any server, without them. Servers on
    other machines are loaded only with `may_load_others` (`--yes`).
    """

    secret: bytes = field(repr=False)
    server: Target | None = None
    may_load_others: bool = False
