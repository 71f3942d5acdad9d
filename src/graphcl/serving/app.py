"""The addresses of the service."""

import asyncio
import os
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from typing import Any
from urllib.parse import parse_qs

import numpy as np

from graphcl.arrays import Array
from graphcl.errors import GraphCLError, MissingExtraError, import_extra
from graphcl.serving.middleware import (
    COOKIE,
    LOGIN,
    Counts,
    Gate,
    as_json,
    error_response,
    ticket,
)
from graphcl.serving.pages import (
    ADDRESSES,
    PATHS,
    PageMaker,
    column_schema,
    described,
    description_page,
    responses,
)
from graphcl.serving.requests import ARROW, Asked, AskedError, Bounds, Reader
from graphcl.serving.run import Current, NotYetError, ServedRun, UnknownError

try:
    from fastapi import FastAPI
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import RedirectResponse, Response
except ImportError as error:
    raise MissingExtraError("graphcl serve", "serve") from error

BODY_SECONDS = 10.0  # until a request's body is there
THREADS = 4  # of a process, at most; a request is computed in one
LOGIN_BYTES, LOGINS = 4096, 64  # of one, and at a time
PIECE = 1 << 16  # bytes of a body or an answer that any request may hold, and that are sent at once
NUMBER_BYTES = 16  # of a probability and its name in JSON, about
Columns = dict[str, Any]
Answer = tuple[dict[str, Any], Columns]  # as JSON, where the last is many; and as a table
WAIT = "<title>GraphCL</title><meta http-equiv=refresh content=2><p>The map is being drawn.</p>"
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'"


def build_app(
    current: Current,
    *,
    bounds: Bounds = Bounds(),  # noqa: B008 (frozen)
    token: str | None = None,
    any_host: bool = False,
    page: PageMaker | None = None,
    counts: Counts | None = None,
    log: str = "none",
    workers: int = 1,
) -> Gate:
    """Returns the service as an ASGI application.

    Args:
        current: the version that answers.
        bounds: of requests.
        token: what requests must bring; None admits all.
        any_host: whether it answers to any name, not only to this machine's own.
        page: draws the live page; None leaves it out.
        counts: where answers are counted.
        log: how a line for each request looks: ``lines``, ``json``, or ``none``.
        workers: processes that share this machine's cores.
    """
    counts = counts or Counts(PATHS)
    # No body is declared to FastAPI: it would read one before there is a place for it.
    inner = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={HTTPException: _http_error, Exception: _bug},
    )
    service = _Service(inner, current, bounds, counts, token, page, workers)
    for path, about in ADDRESSES.items():
        work = partial(service.answer, about.name) if about.takes else getattr(service, about.name)
        inner.add_api_route(
            path,
            _endpoint(work),
            methods=[about.method],
            name=about.name,
            summary=about.summary,
            response_class=Response,
            responses=responses(about),
        )
    how: Any = {"token": token, "any_host": any_host, "log": log}
    return Gate(inner, bounds=bounds, counts=counts, **how)


def _endpoint(
    work: Callable[[Request], Coroutine[Any, Any, Response]],
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def endpoint(request: Request) -> Response:
        return await work(request)

    return endpoint


async def _http_error(_: Request, error: HTTPException) -> Response:
    said = {404: "no such address; /docs has them all", 405: "this address has another method"}
    return error_response(
        error.status_code, said.get(error.status_code, "the request makes no sense")
    )


async def _bug(_: Request, __: Exception) -> Response:
    return error_response(500, "the service failed; its log says more")


class _Pieces(Response):
    """An answer that is sent piece by piece: one that is not read is not copied either.

    Args:
        body: the bytes.
        flight: counts them until they are sent; None for what is kept anyway.
    """

    def __init__(self, body: bytes, *, flight: "_Flight | None" = None, **options: Any) -> None:
        super().__init__(body, **options)
        self._flight = flight or _Flight(len(body))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends it, or says that too much is under way."""
        try:
            with self._flight.hold() as grow:
                grow(len(self.body))
                start = {"status": self.status_code, "headers": self.raw_headers}
                await send({"type": "http.response.start", **start})
                for begin in range(0, max(1, len(self.body)), PIECE):
                    end = begin + PIECE
                    piece = {"body": self.body[begin:end], "more_body": end < len(self.body)}
                    await send({"type": "http.response.body", **piece})
                    await asyncio.sleep(0)  # others have their turn, and who has left is noticed
        except AskedError as error:
            await error_response(error.status, str(error))(scope, receive, send)


class _Flight:
    """Bytes of bodies and answers under way, of all requests together.

    Small ones are not counted, and so go on where large ones have taken all the room: places in
    the queue bound them.
    """

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Yields what a request calls with the number of bytes that it holds by now."""
        mine = 0

        def grow(size: int) -> None:
            nonlocal mine
            more = max(0, size - PIECE) - mine
            if self._held + more > self._most:
                raise AskedError("large requests have taken all the room; ask again", 503)
            self._held += more
            mine += more

        try:
            yield grow
        finally:
            self._held -= mine


def _refusal(error: GraphCLError) -> Response:
    statuses: dict[type, int] = {UnknownError: 404, NotYetError: 503}
    status = getattr(error, "status", statuses.get(type(error), 400))
    return error_response(status, str(error))


class _Service:
    """Answers requests; the work is done by a few threads, so that `/health` never waits."""

    def __init__(
        self,
        inner: FastAPI,
        current: Current,
        bounds: Bounds,
        counts: Counts,
        token: str | None,
        page: PageMaker | None,
        workers: int,
    ) -> None:
        self._current, self._bounds, self._counts = current, bounds, counts
        self._token, self._page = token, page
        # That of the version that answers is kept.
        self._version_of = lru_cache(1)(lambda served: _Version(inner, served, bounds, counts))
        threads = max(1, min(THREADS, (os.cpu_count() or 1) // workers))
        self._threads = ThreadPoolExecutor(threads, "answer", initializer=_one_core)
        self._room = threading.BoundedSemaphore(threads + bounds.waiting)
        self._logins = threading.BoundedSemaphore(LOGINS)
        self._flight = _Flight(bounds.in_flight)

    @property
    def _version(self) -> "_Version":
        """What answers a request that begins now."""
        return self._version_of(self._current.served)

    async def answer(self, name: str, request: Request) -> Response:
        """Reads a body, does the work in a thread and sends JSON or Arrow."""
        as_arrow = ARROW in request.headers.get("accept", "").lower()
        kind = request.headers.get("content-type", "")
        version = self._version
        try:
            work = partial(_do, version, name, kind, as_arrow)
            found = await self._work(request, work)
        except AskedError as error:
            return _refusal(error)
        if isinstance(found, Response):
            return found
        kind = ARROW if as_arrow else "application/json"
        about = {"x-run-version": str(version.served.version)}
        return _Pieces(found, flight=self._flight, media_type=kind, headers=about)

    async def _work(
        self, request: Request, work: Callable[[list[bytes]], bytes | Response]
    ) -> bytes | Response:
        """Takes a place in the queue, reads the body, and waits for a thread to do the work."""
        if not self._room.acquire(blocking=False):
            raise AskedError("too many requests are waiting", 503)
        body: list[bytes] = []
        with self._flight.hold() as grow:
            try:
                body.append(await _body(request, self._bounds.bytes, grow))
                done = self._threads.submit(work, body)
            except BaseException:
                self._room.release()
                raise
            done.add_done_callback(lambda _: self._room.release())
            try:
                return await asyncio.wrap_future(done)
            finally:
                body.clear()  # also where nobody waits any more, and no thread has begun

    async def health(self, _: Request) -> Response:
        """Answers ``/health``: the process is alive."""
        return _json_response({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """Answers ``/ready``. Anybody may ask, so where there is a token little is said."""
        served = self._version.served
        about: dict[str, Any] = {"ready": served.is_ready, "version": served.version}
        if not served.is_ready:
            return _json_response(about | {"error": "the labels are being learned"}, 503)
        if self._token is None:
            about |= {"run": served.name, "nodes": len(served.z), "dim": served.dim}
            about |= {"features": served.num_features, "predicts": served.can_predict}
        return _json_response(about)

    async def metrics(self, _: Request) -> Response:
        """Answers ``/metrics``."""
        self._counts.look(self._version.served.version)
        return Response(self._counts.text(), media_type="text/plain; version=0.0.4")

    async def openapi(self, _: Request) -> Response:
        """Answers ``/openapi.json``."""
        return _Pieces(self._version.described[0], media_type="application/json")

    async def docs(self, _: Request) -> Response:
        """Answers ``/docs``: the description for readers."""
        return _html(self._version.described[1], PAGE_POLICY)

    async def page(self, _: Request) -> Response:
        """Answers ``/``: the map, once it is drawn."""
        if self._page is None:
            return error_response(404, "the service was started without a map")
        drawn = self._page.of(self._version.served)
        if drawn is None:
            response = _html(WAIT.encode(), PAGE_POLICY, status=503)
            response.headers["retry-after"] = "2"
            return response
        return _html(*drawn)

    async def login(self, request: Request) -> Response:
        """Answers ``/login``: gives a browser that knows the token a cookie."""
        if not self._logins.acquire(blocking=False):
            return error_response(503, "too many requests are waiting")
        try:
            body = await _body(request, LOGIN_BYTES)
            fields = parse_qs(body.decode("latin-1"), max_num_fields=2)
        except AskedError as error:
            return error_response(error.status, str(error))
        except ValueError:
            return error_response(400, "give the token, and nothing else")
        finally:
            self._logins.release()
        given = fields.get("token", [""])[0]
        if self._token is not None and secrets.compare_digest(ticket(given), ticket(self._token)):
            answer: Response = RedirectResponse("/", 303)
            how: Any = {"httponly": True, "samesite": "strict"}
            how["secure"] = request.url.scheme == "https"
            answer.set_cookie(COOKIE, ticket(self._token), **how)
            return answer
        return _html(LOGIN.encode(), PAGE_POLICY, status=401)


def _json_response(about: dict[str, Any], status: int = 200) -> Response:
    return Response(as_json(about), status, media_type="application/json")


def _do(
    version: "_Version", name: str, content_type: str, as_arrow: bool, body: list[bytes]
) -> bytes | Response:
    """Answers a question, in a thread."""
    try:
        answer, columns = getattr(version, name)(version.read(name, body.pop(), content_type))
        most = version.bounds.answer_bytes
        kind = np.asarray(version.served.nodes.ids[:1]).dtype
        return _as_arrow(columns, kind, most) if as_arrow else _as_json(answer, most)
    except GraphCLError as error:
        # Raised in here it would hold all that was read until garbage is searched for.
        return _refusal(error)


class _Version:
    """What a version of the run answers."""

    def __init__(self, inner: FastAPI, served: ServedRun, bounds: Bounds, counts: Counts) -> None:
        self._inner, self.served, self.bounds, self._counts = inner, served, bounds, counts
        has_columns = served.preparation is not None
        self.read = Reader(
            {one.name: one.takes for one in ADDRESSES.values() if one.takes},
            bounds,
            features=served.num_features,
            columns=column_schema(served.preparation),
            prepare=served.prepare if has_columns else None,
        )

    @cached_property
    def described(self) -> tuple[bytes, bytes]:
        """The OpenAPI document, for machines and for readers."""
        served, routes = self.served, self._inner.routes
        ids = (served.id(0), served.id(len(served.z) - 1))
        about = described(routes, self.read.models, self.bounds, ids, served.preparation)
        return as_json(about), description_page(about, served.name).encode("utf-8", "replace")

    def _vectors(self, asked: Asked) -> tuple[Array, Array | None]:
        """Returns the embeddings that are asked about, and their rows unless they are new."""
        if asked.new is not None:
            z = self.served.embed_new(asked.new)
            if not np.isfinite(z).all():
                raise AskedError("the features are too large: an embedding is no finite number")
            self._counts.embedded.inc(len(z))
            return z, None
        rows = self.served.rows(asked.ids or [])
        return np.asarray(self.served.z[rows]), rows

    def _names(self, asked: Asked, rows: Any) -> list[Any]:
        if rows is None:
            return [None] * (len(asked.new.features) if asked.new else 0)
        return [self.served.id(row) for row in rows.tolist()]

    def embed(self, asked: Asked) -> Answer:
        """Answers ``/embed``."""
        z, rows = self._vectors(asked)
        names = self._names(asked, rows)
        listed = (_with_id(name, {"embedding": row}) for name, row in zip(names, z, strict=True))
        return {"dim": int(z.shape[1]), "nodes": listed}, {"id": names, "embedding": z}

    def neighbors(self, asked: Asked) -> Answer:
        """Answers ``/neighbors``: the most similar nodes of each."""
        z, rows = self._vectors(asked)
        own = [np.zeros(0, np.int64)] * len(z) if rows is None else list(rows[:, None])
        found = self.served.near(z, asked.k, own)
        return self._similar(asked, rows, found, "neighbors", "neighbor", ("cosine",))

    def _similar(
        self, asked: Asked, rows: Any, found: Any, many: str, one: str, about: tuple[str, ...]
    ) -> Answer:
        """Lists what was found for each node: rows, and columns about them."""
        served, listed = self.served, []
        columns: Columns = {"place": [], "id": [], one: [], **{key: [] for key in about}}
        named = zip(self._names(asked, rows), found, strict=True)
        for place, (name, (near, *values)) in enumerate(named):
            others = []
            for row, *told in zip(near.tolist(), *(some.tolist() for some in values), strict=True):
                other, label = served.id(row), served.label(row)
                said = {"id": other, **dict(zip(about, told, strict=True))}
                others.append(said | ({} if label is None else {"label": label}))
                for key, value in zip(columns, (place, name, other, *told), strict=True):
                    columns[key].append(value)
            listed.append(_with_id(name, {many: others}))
        return {"k": asked.k, "nodes": listed}, columns

    def predict(self, asked: Asked) -> Answer:
        """Answers ``/predict``."""
        z, rows = self._vectors(asked)
        if len(z) * self.served.num_classes * NUMBER_BYTES > self.bounds.answer_bytes:
            raise _too_heavy(self.bounds.answer_bytes)
        names, new = self._names(asked, rows), asked.new
        if new is not None:
            found = self.served.predict_new(z, new)
        else:
            found = self.served.predict(np.asarray(rows), why=asked.why)
        listed = [_with_id(name, one) for name, one in zip(names, found, strict=True)]
        columns: Columns = {"id": names}
        for key in found[0]:
            values = [one[key] for one in found]
            if key == "probabilities":
                each = {f"probability of {name}": name for name in values[0]}
                columns |= {key: [one[name] for one in values] for key, name in each.items()}
            else:
                columns[key] = [one["text"] for one in values] if key == "why" else values
        if not all(isinstance(one, int) for one in columns.get("label", ())):
            columns["label"] = [str(one) for one in columns["label"]]
        return {"nodes": listed}, columns

    def links(self, asked: Asked) -> Answer:
        """Answers ``/links``: scores of pairs, or the likeliest links that a node lacks."""
        served = self.served
        if asked.pairs is None:
            z, rows = self._vectors(asked)
            without = served.linked(np.zeros(0, np.int64) if rows is None else rows)
            if asked.new is not None:
                without = [served.joined(some) for some in asked.new.neighbours]
            found = served.likely(z, rows, asked.k, without)
            return self._similar(asked, rows, found, "links", "target", ("score", "why"))
        pairs = np.stack([served.rows([one[end] for one in asked.pairs]) for end in (0, 1)], axis=1)
        scores = served.link_scores()
        columns: Columns = {
            name: [served.id(row) for row in pairs[:, end].tolist()]
            for end, name in enumerate(("source", "target"))
        }
        columns |= {"score": scores.pairs(pairs).tolist(), "why": scores.why(pairs).tolist()}
        listed = [
            dict(zip(columns, one, strict=True)) for one in zip(*columns.values(), strict=True)
        ]
        return {"pairs": listed}, columns


async def _body(request: Request, most: int, grow: Callable[[int], None] = lambda _: None) -> bytes:
    """Returns a body; `grow` is told of every piece and may refuse it."""
    told = request.headers.get("content-length", "0")
    if not (told.isascii() and told.isdecimal()) or int(told[:20]) > most:
        raise AskedError(f"the body may have {most} bytes at most", 413)
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise AskedError(f"the body may have {most} bytes at most", 413)
                grow(size)
                parts.append(part)
    except TimeoutError:
        raise AskedError("the body did not arrive in time", 408) from None
    except ClientDisconnect:
        raise AskedError("the client went away", 400) from None
    return b"".join(parts)


def _html(text: bytes, policy: str, *, status: int = 200) -> Response:
    headers = {"content-security-policy": policy}
    return _Pieces(text, status_code=status, headers=headers, media_type="text/html")


def _with_id(name: Any, rest: Mapping[str, Any]) -> dict[str, Any]:
    return dict(rest) if name is None else {"id": name, **rest}


def _one_core() -> None:
    import torch

    torch.set_num_threads(1)


def _too_heavy(most: int) -> AskedError:
    return AskedError(f"the answer would have more than {most} bytes; ask for fewer nodes", 413)


def _as_json(answer: dict[str, Any], most: int) -> bytes:
    """Returns an answer as JSON, made one node at a time: other threads have their turn between."""
    import orjson  # takes a fiftieth of the time for numbers

    *about, (many, listed) = answer.items()
    head = as_json(dict([*about, (many, [])]))[:-2]
    parts, size = [], len(head)
    for one in listed:
        parts.append(orjson.dumps(one, option=orjson.OPT_SERIALIZE_NUMPY))
        size += len(parts[-1]) + 1
        if size > most:
            raise _too_heavy(most)
    return head + b",".join(parts) + b"]}"


def _as_arrow(columns: Columns, ids: np.dtype[Any], most: int) -> bytes:
    """Returns a table as an Arrow stream; ids are of the graph's kind, as in JSON."""
    pyarrow = import_extra("pyarrow", "pyarrow.ipc", feature="Arrow answers", extra="serve")
    kind = pyarrow.from_numpy_dtype(ids) if ids.kind in "iuf" else pyarrow.string()
    arrays = {}
    for name, values in columns.items():
        if name == "embedding":
            flat = pyarrow.array(np.ascontiguousarray(values, np.float32).reshape(-1))
            arrays[name] = pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
        elif name in ("id", "source", "target", "neighbor"):
            arrays[name] = pyarrow.array(values, kind)
        else:
            arrays[name] = pyarrow.array(values)
    table = pyarrow.table(arrays)
    if table.nbytes > most:
        raise _too_heavy(most)
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
