"""The live page: the report's map, with a form that embeds a new node and shows its place."""

import base64
import gc
import hashlib
import sys
import threading
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib import resources

from graphcl.errors import GraphCLError
from graphcl.reporting.contents import Contents, gather
from graphcl.reporting.page import map_data, map_section, script_json
from graphcl.reporting.sections import asset
from graphcl.serving.run import ServedRun

NEIGHBOURS = 10  # of each node on the map


@dataclass(frozen=True)
class Drawn:
    """A page and the policy that it is sent with."""

    html: str
    policy: str

    @cached_property
    def body(self) -> bytes:
        """The page as it is sent; all who read it share it."""
        return self.html.encode("utf-8", "replace")


class PageMaker:
    """Draws the page in a thread of its own, because a map of many nodes takes a while.

    Args:
        served: the run.
        layout: ``pca`` or ``umap``.
    """

    def __init__(self, served: ServedRun, *, layout: str = "pca") -> None:
        self._served, self._layout = served, layout
        self._drawn: Drawn | None = None
        self._thread = threading.Thread(target=self._draw, name="map", daemon=True)
        self._thread.start()

    def result(self) -> Drawn | None:
        """Returns the page, or None while it is being drawn."""
        return self._drawn

    def wait(self) -> Drawn | None:
        """Waits for the page; None if it could not be drawn."""
        self._thread.join()
        return self._drawn

    def _draw(self) -> None:
        try:
            why = "the map needs none"
            served = self._served
            contents = gather(
                served.path, None, method=self._layout, why=why, node_type=served.node_type
            )
            self._drawn = live_page(contents, self._served)
            gc.freeze()  # the libraries that drew it stay: no request waits for garbage among them
        except GraphCLError as error:
            print(f"serve: no map: {error}", file=sys.stderr, flush=True)


def live_page(contents: Contents, served: ServedRun) -> Drawn:
    """Returns the page of a run; its script may ask this service and nobody else."""
    own = (resources.files("graphcl.serving") / "assets" / "live.js").read_text(encoding="utf-8")
    script = "\n".join([*(asset(name) for name in ("data.js", "scatter.js", "map.js")), own])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "connect-src 'self'"
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
    return Drawn(html, policy)


_STYLE = """
#new label { display: block; margin-bottom: 12px; color: var(--soft); font-size: 0.875rem; }
#new input, #new textarea { display: block; width: 100%; margin-top: 4px; font: inherit;
  color: var(--ink); background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: 6px 10px; }
#new-near { padding-left: 1.4em; font-variant-numeric: tabular-nums; }
#fresh { pointer-events: none; }
"""
