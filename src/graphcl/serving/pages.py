"""The pages of the service: what it takes and gives, as OpenAPI and for readers; and the live page.

The live page is the report's map, with a form that embeds a new node and shows its place.
"""

import gc
import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from graphcl.errors import GraphCLError
from graphcl.reporting.contents import Contents, gather
from graphcl.reporting.page import (
    joined_scripts,
    map_data,
    map_section,
    script_digest,
    script_json,
)
from graphcl.reporting.sections import asset
from graphcl.serving.requests import ARROW, JSON, Bounds
from graphcl.serving.run import ServedRun
from graphcl.tabular.preparation import (
    CATEGORY,
    DATE,
    DURATION,
    NUMBER,
    TIME,
    VECTOR,
    Column,
    Preparation,
)
from graphcl.version import package_version

NEIGHBOURS = 10  # of each node on the map


@dataclass(frozen=True)
class Address:
    """An address of the service.

    Attributes:
        summary: one line.
        takes: the keys of a body; empty for an address that is only read.
        gives: the kind of the answer.
    """

    summary: str
    takes: tuple[str, ...] = ()
    gives: str = JSON


ADDRESSES = {
    "/embed": Address("Embeddings of known nodes, or of new ones.", ("ids", "new")),
    "/neighbors": Address("The most similar nodes, by cosine.", ("ids", "new", "k")),
    "/predict": Address(
        "Labels with probabilities, or a number, from the run's labels.", ("ids", "new", "why")
    ),
    "/links": Address(
        "Scores of pairs, or the likeliest links that a node lacks.", ("ids", "new", "pairs", "k")
    ),
    "/health": Address("Whether the service answers, and about which run."),
    "/metrics": Address("Counts and times, as Prometheus reads them.", gives="text/plain"),
    "/openapi.json": Address("This description, for machines."),
    "/docs": Address("This description, for readers.", gives="text/html"),
    "/": Address("The live page: a map of the run, and new nodes on it.", gives="text/html"),
    "/login": Address("Gives a browser a cookie for the service's token.", gives="text/html"),
}
ERRORS = {
    "400": "the body is not understood",
    "401": "the token is missing or wrong",
    "404": "no such address, node, or labels",
    "408": "the body did not arrive in time",
    "411": "the body does not say its length",
    "413": "the body, the answer, or the number of nodes times k is too large",
    "415": "the body is neither JSON nor Arrow",
    "429": "too many requests per second",
    "503": "too much is under way, this took too long, or the service is stopping",
}


def open_api(
    features: int,
    dim: int,
    bounds: Bounds,
    ids: tuple[Any, Any] = ("a", "b"),
    preparation: Preparation | None = None,
) -> dict[str, Any]:
    """Returns the OpenAPI document of a run with so many features and columns.

    Args:
        features: of a node.
        dim: of an embedding.
        bounds: what a request may ask.
        ids: two nodes, for the examples.
        preparation: what becomes of the columns of the training's table; None without one.
    """
    columns = preparation.columns if preparation is not None else ()
    paths = {path: _path(path, address, ids, columns) for path, address in ADDRESSES.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "GraphCL",
            "version": package_version(),
            "description": "Embeddings of a graph's nodes, and of nodes that it does not have yet. "
            f"A body may have {bounds.bytes:,} bytes, an answer {bounds.answer_bytes:,}, and nodes "
            f"times k may be {bounds.answers:,}.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(features, dim, bounds, columns),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _path(
    path: str, address: Address, ids: tuple[Any, Any], columns: Sequence[Column]
) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "the answer", "content": {address.gives: {}}}
    if not address.takes:
        verb = "post" if path == "/login" else "get"
        return {verb: {"summary": address.summary, "responses": {"200": answer}}}
    answer["content"][ARROW] = {}
    keys = {key: {"$ref": f"#/components/schemas/{key}"} for key in address.takes}
    if "new" in keys:
        keys["edges"] = {"$ref": "#/components/schemas/edges"}
    body = {"type": "object", "properties": keys, "additionalProperties": False}
    examples = _examples(address, ids, columns)
    errors = {status: {"description": text} for status, text in ERRORS.items()}
    return {
        "post": {
            "summary": address.summary,
            "requestBody": {
                "required": True,
                "content": {JSON: {"schema": body, "examples": examples}, ARROW: {}},
            },
            "responses": {"200": answer, **errors},
            "security": [{"token": []}],
        }
    }


def _examples(address: Address, ids: tuple[Any, Any], columns: Sequence[Column]) -> dict[str, Any]:
    """Returns a body for each kind of question."""
    new: dict[str, Any] = {"features": {"0": 1.0}, "neighbors": list(ids)}
    if columns:
        shown = {column.name: _example(column) for column in columns}
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
    return {DATE: "2026-05-17", DURATION: "3 days", TIME: "09:30"}.get(column.kind, "some words")


def _column(column: Column) -> dict[str, Any]:
    """Returns the schema of a column of the training's table; null is a missing value."""
    about = {"description": column.describe()}
    if column.kind == NUMBER:
        return {"type": ["number", "boolean", "string", "null"], **about}
    if column.kind == VECTOR:
        width = len(column.features)
        numbers = {"type": "array", "items": {"type": "number"}}
        return {"oneOf": [{**numbers, "minItems": width, "maxItems": width}, {"type": "null"}]}
    if column.kind == CATEGORY:
        return {"type": ["string", "number", "boolean", "null"], **about}
    return {"type": ["string", "null"], **about}


def _schemas(features: int, dim: int, bounds: Bounds, columns: Sequence[Column]) -> dict[str, Any]:
    name = {"type": ["string", "integer"], "description": "a node, by its id"}
    numbers = {"type": "array", "items": {"type": "number"}}
    row = {**numbers, "minItems": features, "maxItems": features}
    some = {
        "type": "object",
        "additionalProperties": {"type": "number"},
        "description": "some features by their number; the others are 0",
    }
    raw = {
        "type": "object",
        "description": "a value for each column that the model was trained on, by its name",
        "required": [column.name for column in columns],
        "additionalProperties": False,
        "properties": {column.name: _column(column) for column in columns},
    }
    ways = [{"required": ["features"]}, *([{"required": ["columns"]}] if columns else [])]
    node = {
        "type": "object",
        "oneOf": ways,
        "additionalProperties": False,
        "properties": {
            **({"columns": raw} if columns else {}),
            "features": {"oneOf": [row, some]},
            "neighbors": {"type": "array", "items": name, "maxItems": bounds.neighbours},
            "weights": {**numbers, "description": "of the edges, in the order of neighbors"},
        },
    }
    pair = {"type": "array", "items": name, "minItems": 2, "maxItems": 2}
    most = {"minItems": 1, "maxItems": bounds.nodes}
    return {
        "ids": {"type": "array", "items": name, **most},
        "new": {"type": "array", "items": node, **most},
        "edges": {
            "type": "array",
            "items": {**numbers, "minItems": 2, "maxItems": 3},
            "description": "edges among new nodes: their places in new, and a weight",
        },
        "pairs": {"type": "array", "items": pair, **most},
        "k": {
            "type": "integer",
            "minimum": 1,
            "maximum": bounds.k,
            "default": 10,
            "description": f"of each node; nodes times k may be {bounds.answers} at most",
        },
        "why": {"type": "boolean", "default": False, "description": "of ids: give reasons, too"},
        "embedding": {**numbers, "minItems": dim, "maxItems": dim},
    }


def description_page(about: dict[str, Any], name: str) -> str:
    """Returns the document as a page that needs no script and no other file."""
    parts = []
    for path, verbs in about["paths"].items():
        for verb, one in verbs.items():
            bodies = one.get("requestBody", {}).get("content", {}).get(JSON, {})
            examples = [json.dumps(each["value"]) for each in bodies.get("examples", {}).values()]
            shown = f"<pre>{escape(chr(10).join(examples))}</pre>" if examples else ""
            parts.append(
                f"<section><h2><code>{verb.upper()} {escape(path)}</code></h2>"
                f"<p>{escape(one['summary'])}</p>{shown}</section>"
            )
    schemas = escape(json.dumps(about["components"]["schemas"], indent=2))
    errors = "".join(f"<li>{status}: {escape(text)}</li>" for status, text in ERRORS.items())
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>GraphCL: {escape(name)}</title><style>body{{font:16px/1.5 system-ui,sans-serif;"
        "max-width:50em;margin:2em auto;padding:0 1em}pre{overflow-x:auto;padding:1em;"
        "border:1px solid #8886;border-radius:6px}:root{color-scheme:light dark}</style></head>"
        f"<body><h1>{escape(name)}</h1><p>{escape(about['info']['description'])} Bodies and "
        f"answers are JSON, or Arrow streams (<code>{ARROW}</code>); errors are "
        '<code>{"error": "…"}</code>. The same for machines: '
        '<a href="/openapi.json">/openapi.json</a>.</p>'
        f"{''.join(parts)}<h2>Parts of bodies</h2><pre>{schemas}</pre>"
        f"<h2>Errors</h2><ul>{errors}</ul></body></html>"
    )


@dataclass(frozen=True)
class LivePage:
    """A page and the policy that it is sent with."""

    body: bytes
    policy: str


class PageMaker:
    """Draws the page in a thread of its own, because a map of many nodes takes a while.

    Args:
        served: the run.
        layout: ``pca`` or ``umap``.

    Attributes:
        drawn: the page; None while it is being drawn, and if it could not be.
        thread: draws it.
    """

    def __init__(self, served: ServedRun, *, layout: str = "pca") -> None:
        self._served, self._layout = served, layout
        self.drawn: LivePage | None = None
        self.thread = threading.Thread(target=self._draw, name="map", daemon=True)
        self.thread.start()

    def _draw(self) -> None:
        try:
            served = self._served
            how: Any = {"method": self._layout, "why": "the map needs none"}
            contents = gather(served.path, None, node_type=served.node_type, **how)
            self.drawn = live_page(contents, served)
            gc.freeze()  # the libraries that drew it stay: no request waits for garbage among them
        except GraphCLError as error:
            print(f"serve: no map: {error}", file=sys.stderr, flush=True)


def live_page(contents: Contents, served: ServedRun) -> LivePage:
    """Returns the page of a run; its script may ask this service and nobody else."""
    own = (resources.files("graphcl.serving") / "assets" / "live.js").read_text(encoding="utf-8")
    script = "\n".join([joined_scripts("data.js", "scatter.js", "map.js"), own])
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{script_digest(script)}'; connect-src 'self'"
    )
    data = map_data(contents, NEIGHBOURS)
    features, title = served.num_features, escape(f"GraphCL: {served.name}")
    html = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{asset('report.css')}{_STYLE}</style></head><body><main>"
        f"<header><h1>{escape(served.name)}</h1><p class=lead>{len(served.z):,} nodes, embeddings "
        f'of {served.dim:,} numbers. <a href="/docs">What this service answers</a></p></header>'
        f"{map_section(contents)}"
        '<section class="card" aria-labelledby="new-title"><h2 id="new-title">A new node</h2>'
        '<p class="hint">It is embedded as if it were in the graph, and placed between the nodes '
        "on the map that it is most similar to. Nothing is stored.</p>"
        '<form id="new"><label>Neighbours, ids separated by commas '
        '<input id="new-neighbours" autocomplete="off" spellcheck="false"></label>'
        f"<label>Features: {features:,} numbers, or some as number: value "
        '<textarea id="new-features" rows="4" spellcheck="false"></textarea></label>'
        f'<button type="submit" data-features="{features}">Embed this new node</button></form>'
        '<p id="new-said" class="hint" role="status"></p><ol id="new-near"></ol></section></main>'
        f'<script type="application/json" id="data">{script_json(data)}</script>'
        f"<script>{script}</script></body></html>\n"
    )
    return LivePage(html.encode("utf-8", "replace"), policy)


_STYLE = """
#new label { display: block; margin-bottom: 12px; color: var(--soft); font-size: 0.875rem; }
#new input, #new textarea { display: block; width: 100%; margin-top: 4px; font: inherit;
  color: var(--ink); background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: 6px 10px; }
#new-near { padding-left: 1.4em; font-variant-numeric: tabular-nums; }
#fresh { pointer-events: none; }
"""
