"""The pages of the service: what it takes and gives, as OpenAPI and for readers; and the live page.

The live page is the report's map, with a form that embeds a new node and shows its place.
"""

import json
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import PackageLoader
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from graphcl.errors import GraphCLError, MissingExtraError
from graphcl.reporting.contents import Contents, gather
from graphcl.reporting.page import (
    PAGES,
    joined_scripts,
    map_data,
    map_section,
    script_digest,
    script_json,
)
from graphcl.serving.requests import ARROW, JSON, Bounds
from graphcl.serving.run import ServedRun
from graphcl.tabular.preparation import (
    CATEGORY,
    DATE,
    DURATION,
    NUMBER,
    VECTOR,
    Column,
    Preparation,
)
from graphcl.version import package_version

try:
    from fastapi.openapi.utils import get_openapi
except ImportError as error:
    raise MissingExtraError("graphcl serve", "serve") from error

NEIGHBOURS = 10  # of each node on the map
LivePage = tuple[bytes, str]  # and the policy that it is sent with
_PAGES = PAGES.overlay(loader=PackageLoader("graphcl.serving", "assets"))


class Error(BaseModel):
    """What is wrong, in one line."""

    error: str


@dataclass(frozen=True)
class Address:
    """An address of the service.

    Attributes:
        name: what answers it.
        summary: one line.
        takes: the keys of a body; empty for an address that is only read.
        gives: the kind of the answer.
    """

    name: str
    summary: str
    takes: tuple[str, ...] = ()
    gives: str = JSON

    @property
    def method(self) -> str:
        """The method of HTTP."""
        return "POST" if self.takes or self.name == "login" else "GET"


HTML = "text/html"
ADDRESSES = {
    "/v1/embed": Address("embed", "Embeddings of known nodes, or of new ones.", ("ids", "new")),
    "/v1/neighbors": Address(
        "neighbors", "The most similar nodes, by cosine.", ("ids", "new", "k")
    ),
    "/v1/predict": Address(
        "predict",
        "Labels with probabilities, or a number, from the run's labels.",
        ("ids", "new", "why"),
    ),
    "/v1/links": Address(
        "links",
        "Scores of pairs, or the likeliest links that a node lacks.",
        ("ids", "new", "pairs", "k"),
    ),
    "/health": Address("health", "Whether the process is alive."),
    "/ready": Address("ready", "Whether all is learned, and which version of the run answers."),
    "/metrics": Address("metrics", "Counts and times, for Prometheus.", gives="text/plain"),
    "/openapi.json": Address("openapi", "This description, for machines."),
    "/docs": Address("docs", "This description, for readers.", gives=HTML),
    "/": Address("page", "The live page: a map of the run, and new nodes on it.", gives=HTML),
    "/login": Address("login", "Gives a browser a cookie for the service's token.", gives=HTML),
}
PATHS = tuple(ADDRESSES)
ERRORS = {
    400: "the body is not understood",
    401: "the token is missing or wrong",
    404: "no such address, node, or labels",
    408: "the body did not arrive in time",
    411: "the body does not say its length",
    413: "the body, the answer, or the number of nodes times k is too large",
    415: "the body is neither JSON nor Arrow",
    429: "too many requests per second",
    503: "too much is under way, this took too long, or the service is stopping",
}


def responses(address: Address) -> dict[int | str, dict[str, Any]]:
    """Returns the answers of an address, as FastAPI describes them."""
    kinds = (JSON, ARROW) if address.takes else (address.gives,)
    about: dict[int | str, dict[str, Any]] = {
        200: {"description": "the answer", "content": {kind: {} for kind in kinds}}
    }
    for status, text in ERRORS.items() if address.takes else ():
        about[status] = {"description": text, "model": Error}
    return about


def described(
    routes: Any,
    models: Mapping[str, type[BaseModel]],
    bounds: Bounds,
    ids: tuple[Any, Any],
    preparation: Preparation | None = None,
) -> dict[str, Any]:
    """Returns the OpenAPI document, which FastAPI makes, with the bodies of questions.

    Args:
        routes: of the application.
        models: what bodies may hold.
        bounds: what a request may ask.
        ids: two nodes, for the examples.
        preparation: what becomes of the columns of the training's table; None without one.
    """
    about = get_openapi(
        title="GraphCL",
        version=package_version(),
        description="Embeddings of a graph's nodes, and of nodes that it does not have yet. "
        f"A body may have {bounds.bytes:,} bytes, an answer {bounds.answer_bytes:,}, and nodes "
        f"times k may be {bounds.answers:,}.",
        routes=routes,
    )
    inputs: Any = [(model, "validation") for model in models.values()]
    named, shared = models_json_schema(inputs, ref_template="#/components/schemas/{model}")
    parts = about["components"]
    parts["schemas"] |= shared["$defs"]
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, address in ADDRESSES.items():
        if address.takes:
            content = {
                JSON: {
                    "schema": named[models[address.name], "validation"],
                    "examples": _examples(address, ids, preparation),
                },
                ARROW: {},
            }
            post = about["paths"][path]["post"]
            post |= {"requestBody": {"required": True, "content": content}}
            post["security"] = [{"token": []}]
    return about


def _examples(
    address: Address, ids: tuple[Any, Any], preparation: Preparation | None
) -> dict[str, Any]:
    """Returns a body for each kind of question."""
    new: dict[str, Any] = {"features": {"0": 1.0}, "neighbors": list(ids)}
    if preparation is not None and preparation.columns:
        shown = {column.name: _example(column) for column in preparation.columns}
        new = {"columns": shown, "neighbors": list(ids)}
    asked = {"ids": list(ids), "new": [new], "pairs": [list(ids)]}
    k = {"k": 3} if "k" in address.takes else {}
    return {
        key: {"value": {key: value, **({} if key == "pairs" else k)}}
        for key, value in asked.items()
        if key in address.takes
    }


def _example(column: Column) -> Any:
    """Returns a value of a column, as the training had it."""
    if column.kind == NUMBER:
        return round((column.low + column.high) / 2, 2)
    if column.kind == CATEGORY:
        return column.categories[0]
    if column.kind == VECTOR:
        return [0.0] * len(column.features)
    return {DATE: "2026-05-17", DURATION: "3 days"}.get(column.kind, "some words")


_TYPES = {  # of a value in JSON, by the kind of its column; of others, text
    NUMBER: ["number", "boolean", "string", "null"],
    CATEGORY: ["string", "number", "boolean", "null"],
}


def _column(column: Column) -> dict[str, Any]:
    """Returns the schema of a column of the training's table; null is a missing value."""
    if column.kind == VECTOR:
        width = len(column.features)
        numbers = {"type": "array", "items": {"type": "number"}}
        return {"oneOf": [{**numbers, "minItems": width, "maxItems": width}, {"type": "null"}]}
    types = _TYPES.get(column.kind, ["string", "null"])
    return {"type": types, "description": column.describe()}


def column_schema(preparation: Preparation | None) -> dict[str, Any] | None:
    """Returns the JSON schema of a row of the user's table; None for a run without one."""
    if preparation is None or not preparation.columns:
        return None
    return {
        "type": "object",
        "description": "a value for each column that the model was trained on, by its name",
        "required": [column.name for column in preparation.columns],
        "additionalProperties": False,
        "properties": {column.name: _column(column) for column in preparation.columns},
    }


def description_page(about: dict[str, Any], name: str) -> str:
    """Returns the document as a page that needs no script and no other file."""
    given: Any = {"json": JSON, "arrow": ARROW, "errors": ERRORS, "dumps": json.dumps}
    return _PAGES.get_template("docs.html").render(about=about, name=name, **given)


class PageMaker:
    """Draws the page in a thread of its own, because a map of many nodes takes a while.

    Args:
        layout: ``pca`` or ``umap``.

    Attributes:
        thread: draws it.
    """

    def __init__(self, layout: str = "pca") -> None:
        self._layout = layout
        self._drawn: LivePage | None = None
        self._of: Callable[[], ServedRun | None] = lambda: None
        self.thread: threading.Thread | None = None

    def of(self, served: ServedRun) -> LivePage | None:
        """Returns the page, or the one before while it is being drawn; None where there is none."""
        busy = self.thread is not None and self.thread.is_alive()
        if self._of() is not served and not busy:
            self._of = weakref.ref(served)
            how: Any = {"target": self._draw, "args": (served,), "name": "map", "daemon": True}
            self.thread = threading.Thread(**how)
            self.thread.start()
        return self._drawn

    def _draw(self, served: ServedRun) -> None:
        try:
            how: Any = {"method": self._layout, "why": "the map needs none"}
            contents = gather(served.path, None, node_type=served.node_type, **how)
            self._drawn = live_page(contents, served)
        except (GraphCLError, OSError) as error:
            print(f"serve: no map: {error}", file=sys.stderr, flush=True)


def live_page(contents: Contents, served: ServedRun) -> LivePage:
    """Returns the page of a run; its script may ask this service and nobody else."""
    own = (resources.files("graphcl.serving") / "assets" / "live.js").read_text(encoding="utf-8")
    script = "\n".join([joined_scripts("data.js", "scatter.js", "map.js"), own])
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{script_digest(script)}'; connect-src 'self'"
    )
    html = _PAGES.get_template("live.html").render(
        served=served,
        map=map_section(contents),
        data=script_json(map_data(contents, NEIGHBOURS)),
        script=script,
    )
    return html.encode("utf-8", "replace"), policy
