"""What every request passes: host, token, rate, time; errors as JSON; counts and the log.

A service on this machine's own address answers its own names alone. Otherwise a page of another
site, whose name is made to lead here, could ask it anything.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import json
import os
import re
import secrets
import select
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from graphcl.errors import MissingExtraError
from graphcl.memory import resident_bytes
from graphcl.serving.requests import Bounds
from graphcl.version import package_version

try:
    import h11
    import prometheus_client as prometheus
    from prometheus_client.multiprocess import MultiProcessCollector
    from starlette.responses import Response
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingExtraError("graphcl serve", "serve") from error

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "graphcl"
OPEN = ("/health", "/ready", "/login")  # without a token
LOGIN = (
    '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>GraphCL</title>'
    "<form method=post action=/login><label>Token <input name=token type=password></label> "
    "<button>Open</button></form></html>"
)  # asks a browser for the token
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MOST_CLIENTS = 10_000  # addresses whose rates are remembered
LOGGED = 300  # characters of a path in the log
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")  # what a client may call its request


class Counts:
    """How many requests were answered, how, and how fast, as Prometheus reads it.

    Args:
        paths: the addresses that are counted by name.
        folder: where several processes keep their figures, so that each answers for all.
    """

    def __init__(self, paths: tuple[str, ...], folder: Path | None = None) -> None:
        if folder is not None:  # both are looked at when a figure is made
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
            prometheus.values.ValueClass = prometheus.values.get_value_class()
        prometheus.disable_created_metrics()
        self._paths, self._folder = paths, folder
        self._registry = prometheus.CollectorRegistry()
        own: Any = {"registry": self._registry}
        each: Any = own | {"multiprocess_mode": "liveall"}
        named = ("graphcl_requests", "Answers, by address and status.", ["path", "status"])
        self._answers = prometheus.Counter(*named, **own)
        named = ("graphcl_request_seconds", "Seconds until an answer was sent.", ["path"])
        self._seconds = prometheus.Histogram(*named, buckets=BUCKETS, **own)
        self.embedded = prometheus.Counter("graphcl_embedded_nodes", "New nodes embedded.", **own)
        own |= {"multiprocess_mode": "livesum"}
        self.under_way = prometheus.Gauge("graphcl_requests_under_way", "Requests.", **own)
        self._version = prometheus.Gauge("graphcl_run_version", "The version in use.", **each)
        self._memory = prometheus.Gauge("graphcl_memory_bytes", "Resident memory.", **each)
        about = prometheus.Gauge("graphcl_info", "This software.", ["version"], **each)
        about.labels(package_version()).set(1)

    def note(self, path: str, status: int, seconds: float) -> None:
        """Counts an answer; an address that is not known counts as ``other``."""
        name = path if path in self._paths else "other"
        self._answers.labels(name, status).inc()
        self._seconds.labels(name).observe(seconds)

    def look(self, version: int) -> None:
        """Notes which version of the run answers, and how much memory the process holds."""
        self._version.set(version)
        self._memory.set(resident_bytes())

    def text(self) -> bytes:
        """Returns all figures in Prometheus' text format."""
        registry = self._registry
        if self._folder is not None:
            registry = prometheus.CollectorRegistry()
            MultiProcessCollector(registry, str(self._folder))
        return prometheus.generate_latest(registry)


def write_line(form: str, scope: Scope, **about: Any) -> None:
    """Writes a line about a request on stderr, unless nobody reads there: no request waits for it.

    What a client chose is cut, and has no line breaks. A line is written whole, so that those of
    several processes do not mix.

    Args:
        form: ``lines`` or ``json``.
        scope: the request.
        about: what else is known.
    """
    client = scope["client"][0] if scope.get("client") else "-"
    path = scope.get("raw_path", b"").decode("latin-1")[:LOGGED]
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    known = {"time": at, "client": client, "method": scope["method"][:16], "path": path} | about
    line = json.dumps(known) if form == "json" else " ".join(map(str, known.values()))
    with suppress(OSError):
        try:
            read = select.select([], [2], [], 0)[1]
        except OSError:  # Windows says it of sockets alone
            read = [2]
        if read:
            os.write(2, line.encode("ascii", "backslashreplace") + b"\n")


class _Rate:
    """Lets an address ask so often per second; it may save up two seconds' worth."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._known: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str) -> bool:
        if not self._per_second:
            return True
        now, most = time.monotonic(), max(1.0, 2 * self._per_second)
        left, when = self._known.pop(client, (most, now))
        left = min(most, left + (now - when) * self._per_second)
        self._known[client] = (max(0.0, left - 1), now)
        if len(self._known) > MOST_CLIENTS:
            self._known.popitem(last=False)
        return left >= 1


class Gate:
    """The outermost layer of the service.

    Args:
        inner: what answers.
        bounds: rates and times.
        counts: where answers are counted.
        token: what requests must bring; None admits all.
        any_host: whether the service answers to any name.
        log: how a line for each request looks: ``lines`` or ``json``; ``none`` leaves it out.
    """

    def __init__(
        self,
        inner: App,
        *,
        bounds: Bounds,
        counts: Counts,
        token: str | None,
        any_host: bool,
        log: str = "none",
    ) -> None:
        self._inner, self._bounds, self._counts = inner, bounds, counts
        self._token, self._any_host, self._log = token, any_host, log
        self._rate = _Rate(bounds.per_second)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":  # no web sockets
            await send({"type": "websocket.close", "code": 1000})
            return
        began, status, started, sent = time.perf_counter(), 500, False, 0
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        own = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8).encode()

        async def refuse(code: int, message: str) -> None:
            if not started:
                await error_response(code, message)(scope, receive, noted)

        async def noted(message: Message) -> None:
            nonlocal status, started, sent
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                named = (b"x-request-id", own)
                message["headers"] = [*message.get("headers", []), *_HEADERS, named]
            sent += len(message.get("body", b""))
            await send(message)

        self._counts.under_way.inc()
        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                ask = LOGIN if refusal[0] == 401 and scope["path"] == "/" else ""
                await error_response(*refusal, page=ask)(scope, receive, noted)
                return
            try:
                async with asyncio.timeout(self._bounds.seconds):
                    await self._inner(scope, receive, noted)
            except TimeoutError:
                await refuse(503, "this took too long; ask for less, or later")
            except asyncio.CancelledError:  # the service is told to stop, and has waited
                await refuse(503, "the service is stopping")
            except Exception as error:
                # The one place where any error may end: a client never sees a traceback.
                what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                print(f"serve: bug: {own.decode()}: {what}", file=sys.stderr, flush=True)
                await refuse(500, "the service failed; its log says more")
        finally:
            seconds = time.perf_counter() - began
            self._counts.under_way.dec()
            self._counts.note(scope["path"], status, seconds)
            if self._log != "none":
                told: Any = {"status": status, "ms": round(seconds * 1e3, 2), "bytes": sent}
                write_line(self._log, scope, **told, request_id=own.decode())

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        if not self._any_host and not is_own(_host(headers.get(b"host", b""))):
            return 421, "this service answers to localhost and loopback addresses alone"
        client = scope["client"][0] if scope.get("client") else ""
        if not self._rate.allows(client):
            return 429, f"more than {self._bounds.per_second:g} requests per second"
        if b"transfer-encoding" in headers:  # a million pieces of a byte each take a while to read
            return 411, "a body must come whole, with its content-length"
        if self._token is None or scope["path"] in OPEN or self._is_known(headers):
            return None
        return 401, "give the service's token: Authorization: Bearer TOKEN"

    def _is_known(self, headers: dict[bytes, bytes]) -> bool:
        assert self._token is not None
        given = headers.get(b"authorization", b"")
        if secrets.compare_digest(given, b"Bearer " + self._token.encode()):
            return True
        # Python's own parser of cookies takes seconds for some of 32 KB.
        right = f"{COOKIE}={ticket(self._token)}".encode()
        cookies = headers.get(b"cookie", b"").split(b";")
        return any(secrets.compare_digest(one.strip(), right) for one in cookies)


def is_own(host: str) -> bool:
    """Returns whether a name or an address is this machine's own, and leads nowhere else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def ticket(token: str) -> str:
    """Returns what a browser's cookie holds in place of the token."""
    return hmac.new(token.encode(), b"graphcl page", hashlib.sha256).hexdigest()


def _host(header: bytes) -> str:
    text = header.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


_OF_STATUS = {
    401: {"www-authenticate": "Bearer"},
    411: {"connection": "close"},  # the rest is not read
    429: {"retry-after": "1"},
    503: {"retry-after": "1"},
}


def as_json(value: Any) -> bytes:
    """Returns JSON that any text can be in; a number that is not finite is a bug."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def error_response(status: int, message: str, page: str = "") -> Response:
    """Returns an error as JSON, or as a page."""
    headers = _OF_STATUS.get(status)
    if page:
        return Response(page, status, headers, media_type="text/html")
    return Response(as_json({"error": message}), status, headers, media_type="application/json")


HEAD_SECONDS = 10  # until the head of a request must be there, from the last answer on
HEAD_BYTES = 1 << 13
HEAD_LINES = 100
CONNECTIONS = 512  # at a time


class Connection(H11Protocol):
    """A connection whose requests must begin in time."""

    _seen: Any = None  # the request that was answered when the wait began
    _since = 0.0
    _timer: Any = None

    def connection_made(self, transport: Any) -> None:
        """Begins to watch; makes room if there are too many."""
        transport.max_size = HEAD_BYTES  # no connection takes long to read, or holds much unread
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > CONNECTIONS:
            waiting: Any = [one for one in self.connections if one.waits]  # type: ignore[union-attr]
            min(waiting, key=lambda one: one._since, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends watching."""
        self._timer.cancel()
        super().connection_lost(exc)

    @property
    def waits(self) -> bool:
        """Whether it waits for its client: to ask, or to read an answer."""
        return self.cycle is None or self.cycle.response_complete or self.flow.write_paused

    def data_received(self, data: bytes) -> None:
        """Reads on, but no more of a body than is asked for."""
        heads = () if self.conn.their_state is h11.SEND_BODY else data.split(b"\r\n\r\n")
        try:
            if any(head.count(b"\n") > HEAD_LINES for head in heads):
                self.send_400_response("")
                return
            super().data_received(data)
        except h11.LocalProtocolError:  # nonsense after an answer: there is nobody to talk to
            self.transport.abort()
        if self.cycle is not None and self.cycle.body and not self.cycle.response_complete:
            self.flow.pause_reading()

    def send_400_response(self, msg: str) -> None:
        """Says that a head makes no sense, as all errors are said, and closes."""
        del msg  # uvicorn's words
        body = as_json({"error": "this is no HTTP request, or its head is too long"})
        kind = (b"content-type", b"application/json")
        headers = [kind, (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        answer = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def on_response_complete(self) -> None:
        """Waits for the next request."""
        self._watch()
        super().on_response_complete()

    def shutdown(self) -> None:
        """Closes it, once a request under way is answered."""
        try:
            super().shutdown()
        except h11.LocalProtocolError:
            self.transport.abort()

    def _watch(self) -> None:
        self._seen, self._since = self.cycle, self.loop.time()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._end)

    def _end(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if (idle and self._seen is self.cycle) or self.transport.is_closing():
            self.transport.abort()  # what is not read by now never is
        else:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._end)
