"""The addresses of the service."""

import asyncio
import os
import secrets
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any
from urllib.parse import parse_qs

import numpy as np

from graphcl.arrays import Array
from graphcl.errors import GraphCLError, MissingExtraError, import_extra
from graphcl.serving.middleware import COOKIE, LOGIN, Counts, Gate, as_json, error_response, ticket
from graphcl.serving.pages import ADDRESSES, PageMaker, description_page, open_api
from graphcl.serving.requests import ARROW, Asked, AskedError, Bounds, read_asked
from graphcl.serving.run import NotYetError, ServedRun, UnknownError

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import RedirectResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise MissingExtraError("graphcl serve", "serve") from error

BODY_SECONDS = 10.0  # until a request's body is there
WORKERS = 4  # threads at most; a request is computed in one
LOGIN_BYTES, LOGINS = 4096, 64  # of one, and at a time
PIECE = 1 << 16  # bytes of a body or an answer that any request may hold, and that are sent at once
NUMBER_BYTES = 16  # of a probability and its name in JSON, about
Columns = dict[str, Any]
Answer = tuple[dict[str, Any], Columns]  # as JSON, where the last is many; and as a table
WAIT = "<title>GraphCL</title><meta http-equiv=refresh content=2><p>The map is being drawn.</p>"
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'"


def build_app(
    served: ServedRun,
    *,
    bounds: Bounds = Bounds(),  # noqa: B008 (frozen)
    token: str | None = None,
    any_host: bool = False,
    page: PageMaker | None = None,
) -> Gate:
    """Returns the service as an ASGI application.

    Args:
        served: what answers.
        bounds: of requests.
        token: what requests must bring; None admits all.
        any_host: whether it answers to any name, not only to this machine's own.
        page: draws the live page; None leaves it out.
    """
    counts = Counts(tuple(ADDRESSES))
    service = _Service(served, bounds, counts, token, page)
    asked: dict[str, Callable[[Asked], Answer]] = {
        "/embed": service.embed,
        "/neighbors": service.neighbors,
        "/predict": service.predict,
        "/links": service.links,
    }
    shown: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/": service.live_page,
        "/docs": service.docs,
        "/health": service.health,
        "/metrics": service.metrics,
        "/openapi.json": service.description,
    }
    routes = [
        Route(path, partial(service.answer, path=path, work=work), methods=["POST"])
        for path, work in asked.items()
    ]
    routes += [Route(path, work, methods=["GET"]) for path, work in shown.items()]
    routes.append(Route("/login", service.login, methods=["POST"]))
    inner = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _http_error, Exception: _bug},  # type: ignore[dict-item]
    )
    inner.router.redirect_slashes = False
    return Gate(inner, bounds=bounds, counts=counts, token=token, any_host=any_host)


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
        served: ServedRun,
        bounds: Bounds,
        counts: Counts,
        token: str | None,
        page: PageMaker | None,
    ) -> None:
        self._served, self._bounds, self._counts = served, bounds, counts
        self._token, self._page = token, page
        workers = min(WORKERS, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(workers, "answer", initializer=_one_core)
        self._room = threading.BoundedSemaphore(workers + bounds.waiting)
        self._logins = threading.BoundedSemaphore(LOGINS)
        self._flight = _Flight(bounds.in_flight)

    async def answer(
        self, request: Request, *, path: str, work: Callable[[Asked], Answer]
    ) -> Response:
        """Reads a body, does the work in a thread and sends JSON or Arrow."""
        as_arrow = ARROW in request.headers.get("accept", "").lower()
        try:
            found = await self._work(request, partial(self._do, request, path, work, as_arrow))
        except AskedError as error:
            return _refusal(error)
        if isinstance(found, Response):
            return found
        kind = ARROW if as_arrow else "application/json"
        return _Pieces(found, flight=self._flight, media_type=kind)

    def _do(
        self,
        request: Request,
        path: str,
        work: Callable[[Asked], Answer],
        as_arrow: bool,
        body: list[bytes],
    ) -> bytes | Response:
        try:
            asked = read_asked(
                body.pop(),
                request.headers.get("content-type", ""),
                self._bounds,
                features=self._served.num_features,
                takes=ADDRESSES[path].takes,
                prepare=None if self._served.preparation is None else self._served.prepare,
            )
            answer, columns = work(asked)
            most = self._bounds.answer_bytes
            kind = np.asarray(self._served.nodes.ids[:1]).dtype
            return _as_arrow(columns, kind, most) if as_arrow else _as_json(answer, most)
        except GraphCLError as error:
            # Raised in here it would hold all that was read until garbage is searched for.
            return _refusal(error)

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

    def _vectors(self, asked: Asked) -> tuple[Array, Array | None]:
        """Returns the embeddings that are asked about, and their rows unless they are new."""
        if asked.new is not None:
            z = self._served.embed_new(asked.new)
            if not np.isfinite(z).all():
                raise AskedError("the features are too large: an embedding is no finite number")
            self._counts.embedded += len(z)
            return z, None
        rows = self._served.rows(asked.ids or [])
        return np.asarray(self._served.z[rows]), rows

    def _names(self, asked: Asked, rows: Any) -> list[Any]:
        if rows is None:
            return [None] * (len(asked.new.features) if asked.new else 0)
        return [self._served.id(row) for row in rows.tolist()]

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
        found = self._served.near(z, asked.k, own)
        return self._similar(asked, rows, found, "neighbors", "neighbor", ("cosine",))

    def _similar(
        self, asked: Asked, rows: Any, found: Any, many: str, one: str, about: tuple[str, ...]
    ) -> Answer:
        """Lists what was found for each node: rows, and columns about them."""
        served, listed = self._served, []
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
        if len(z) * self._served.num_classes * NUMBER_BYTES > self._bounds.answer_bytes:
            raise _too_heavy(self._bounds.answer_bytes)
        names, new = self._names(asked, rows), asked.new
        if new is not None:
            found = self._served.predict_new(z, new)
        else:
            found = self._served.predict(np.asarray(rows), why=asked.why)
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
        served = self._served
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

    async def health(self, _: Request) -> Response:
        """Answers ``/health``."""
        served = self._served
        if self._token is not None:  # anybody may ask, so nothing else is said
            return Response(as_json({"status": "ok"}), media_type="application/json")
        about = {"status": "ok", "run": served.name, "nodes": len(served.z), "dim": served.dim}
        about |= {"features": served.num_features, "predicts": served.can_predict}
        return Response(as_json(about), media_type="application/json")

    async def metrics(self, _: Request) -> Response:
        """Answers ``/metrics``."""
        return Response(self._counts.text(), media_type="text/plain; version=0.0.4")

    async def description(self, _: Request) -> Response:
        """Answers ``/openapi.json``."""
        return _Pieces(self._described[0], media_type="application/json")

    async def docs(self, _: Request) -> Response:
        """Answers ``/docs``: the description for readers."""
        return _html(self._described[1], PAGE_POLICY)

    @cached_property
    def _described(self) -> tuple[bytes, bytes]:
        served = self._served
        ids = (served.id(0), served.id(len(served.z) - 1))
        about = open_api(served.num_features, served.dim, self._bounds, ids, served.preparation)
        return as_json(about), description_page(about, served.name).encode("utf-8", "replace")

    async def live_page(self, _: Request) -> Response:
        """Answers ``/``: the map, once it is drawn."""
        if self._page is None:
            return error_response(404, "the service was started without a map")
        drawn = self._page.drawn
        if drawn is None:
            response = _html(WAIT.encode(), PAGE_POLICY, status=503)
            response.headers["retry-after"] = "2"
            return response
        return _html(drawn.body, drawn.policy)

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
            answer.set_cookie(COOKIE, ticket(self._token), httponly=True, samesite="strict")
            return answer
        return _html(LOGIN.encode(), PAGE_POLICY, status=401)


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
