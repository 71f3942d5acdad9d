"""Gathers the contents of a report from a run and, if it can be read, its graph.

What the page knows of each node are columns to show, to sort and to colour by, and who comes first:
the predictions that the run keeps, with their reasons if `graphcl predict` gave some, groups,
labels, and the user's own. Nothing is predicted here. A run may come from anybody: a table that is
not one of predictions is none.

Of embeddings in shards and a store in parts, what is measured on edges is left out.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from graphcl.answers.grouping import cluster
from graphcl.answers.inputs import shards_of_run
from graphcl.arrays import Array
from graphcl.errors import GraphError, RunError, demand, option, require
from graphcl.evaluation.probe import linear_probe
from graphcl.evaluation.splits import Confusion, probe_confusion
from graphcl.evaluation.unsupervised import (
    EXACT_ROWS,
    effective_rank,
    mean_cosine,
    nearest,
    sampled_rows,
)
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.reporting.projection import NEIGHBOURS, principal, project, usable_method
from graphcl.runs import files as runs
from graphcl.runs.nodes import SPLITS, describe_nodes, read_nodes, type_folder
from graphcl.runs.versions import run_root
from graphcl.seeding import derive
from graphcl.store.header import MASKS, read_store
from graphcl.tabular.originals import FEATURES, FLAGS, LABEL, Original
from graphcl.tabular.preparation import CATEGORY, NUMBER, TEXT, Preparation, read_preparation

SINGLE_FEATURES = 24  # features that are columns of their own; of more, a node's largest are named
LARGEST = 5
MOST_TEXT = 160  # characters of a cell

DAMAGED = (KeyError, TypeError, ValueError, AttributeError, IndexError)  # or of another version
MOST_CONFUSED = 50  # classes beyond which a table of them all tells nothing
MAP_NODES = 200_000  # drawn at most; a larger graph is sampled
SCORED_NODES = 200_000  # labelled nodes that the probe sees at most
LEFT_OUT = "What is measured on edges is left out: it needs the whole graph in memory."
INDEX_DIMENSIONS = 64  # principal components in which a large map searches neighbours

AnyGraph = Graph | GraphCollection

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Ranking:
    """Predicted nodes as a list to act on: the highest risk, value or certainty first.

    Attributes:
        rows: their row numbers, in this order.
        columns: what is predicted of them; the first ranks them, and other nodes have none.
    """

    rows: Array
    columns: tuple[Original, ...]


def read_ranking(
    table: Mapping[str, Sequence[Any]], about: Mapping[str, Any], ids: Sequence[Any]
) -> Ranking | None:
    """Returns the ranking in a kept table; None if it is empty, or not of these nodes.

    Args:
        table: columns ``id``, ``label``, ``probability``, ``p:CLASS`` for each class, ``value``,
            ``low``, ``high`` and ``why``, as far as they are there.
        about: its summary.
        ids: of all nodes, in order.
    """
    try:
        place = {str(name): row for row, name in enumerate(ids)}
        rows = np.array([place.get(str(name), -1) for name in table["id"]], np.int64)
        known = np.flatnonzero(rows >= 0)
        columns = []
        for key, name, kind, unit in _predicted(table, about):
            values: Array = np.full(len(ids), np.nan if kind == NUMBER else None)
            cells = [table[key][row] for row in known.tolist()]
            if kind == NUMBER:
                cells = (np.array(cells, np.float64) * (100 if unit else 1)).tolist()
            values[rows[known]] = [_text(one) if kind != NUMBER else one for one in cells]
            columns.append(Original(name, kind, np.round(values, 1) if unit else values, (), unit))
        if not columns or not len(known) or len(set(rows[known].tolist())) < len(known):
            return None
        first = columns[0].values[rows[known]] if columns[0].kind == NUMBER else -known
        return Ranking(rows[known][np.argsort(-first, kind="stable")], tuple(columns))
    except DAMAGED:
        return None


def _text(cell: Any) -> str | None:
    listed = isinstance(cell, list)
    return ", ".join(map(str, cell)) if listed else None if cell is None else str(cell)


def _predicted(
    table: Mapping[str, Sequence[Any]], about: Mapping[str, Any]
) -> list[tuple[str, str, str, str]]:
    """Returns columns of a table of predictions, and how they are called, the ranking one first.

    Of two classes, the one that is looked for ranks: it sorts the table, or is the rarer one.
    """
    classes = [name[2:] for name in table if name.startswith("p:")]
    found = [("probability", "probability", NUMBER, " %")]
    if len(classes) == 2 and not about.get("several"):
        labelled = about.get("labelled") or {}
        rarer = min(reversed(classes), key=lambda name: int(labelled.get(name, 0)))
        sorting = [
            name
            for name in classes
            if len(table["id"]) > 2 and (np.diff(np.array(table[f"p:{name}"], float)) <= 0).all()
        ]
        name = [*sorting, rarer][0]
        found = [(f"p:{name}", f"probability of {name}", NUMBER, " %")]
    found += [("value", "predicted value", NUMBER, ""), ("low", "at least", NUMBER, "")]
    found += [("high", "at most", NUMBER, ""), ("label", "prediction", CATEGORY, "")]
    return [one for one in (*found, ("why", "why", TEXT, "")) if one[0] in table]


def all_columns(
    nodes: Nodes, ranking: Ranking | None, assigned: Array | None, own: Sequence[Original]
) -> tuple[list[Original], list[Original]]:
    """Returns what the page knows of each node, and the user's columns, which are left out first.

    Points of the map are coloured by the first at first.
    """
    found = [] if ranking is None else list(ranking.columns)
    labels = [one for one in own if one.name == LABEL and one.kind == CATEGORY]
    found += [] if found else labels
    if assigned is not None:
        names = [f"group {number}" for number in range(1, int(assigned.max(initial=-1)) + 2)]
        texts = np.array([*names, None], dtype=object)  # −1 is the last
        found.append(Original("group", CATEGORY, texts[assigned]))
    if nodes.split_codes is not None:
        codes = np.array([None, *SPLITS[1:]], dtype=object)[nodes.split_codes]
        found.append(Original("split", CATEGORY, codes))
    last = [] if ranking is None else labels  # most ranked nodes have none
    others = [part for one in own if one not in labels for part in _single(one)]
    return found, others + last


def _single(one: Original) -> list[Original]:
    """Returns a column as such that have one value a node; of many features, one with the largest.

    Of flags, the rarest that a node has come first.
    """
    if one.kind == FEATURES and len(one.items) <= SINGLE_FEATURES:
        each = zip(one.items, one.values.T, strict=True)
        return [Original(name, NUMBER, values.astype(np.float64)) for name, values in each]
    if one.kind in (FEATURES, FLAGS):
        title = LABEL if one.name == LABEL else f"largest {one.name}"
        return [Original(title, TEXT, np.array([*_largest(one), None], dtype=object)[:-1])]
    if one.kind not in (CATEGORY, TEXT):
        return [one]
    short = [None if text is None else text[:MOST_TEXT] for text in one.values.tolist()]
    return [replace(one, values=np.array([*short, None], dtype=object)[:-1])]


def _largest(one: Original) -> list[str]:
    if one.kind == FLAGS:
        often, flags = np.asarray(one.values.sum(axis=0)).ravel(), one.values.tocsr()
        each = (flags.indices[a:b] for a, b in zip(flags.indptr, flags.indptr[1:], strict=False))
        best = (items[np.argsort(often[items], kind="stable")[:LARGEST]] for items in each)
        return [", ".join(one.items[item] for item in some) for some in best]
    spread = one.values.std(axis=0)
    score = np.abs(one.values - one.values.mean(axis=0)) / np.where(spread > 0, spread, 1)
    best = np.argsort(-score, axis=1, kind="stable")[:, :LARGEST].tolist()
    return [
        ", ".join(f"{one.items[item]} = {one.values[row, item]:.3g}" for item in some)
        for row, some in enumerate(best)
    ]


@dataclass(frozen=True, eq=False)
class MapPoints:
    """The nodes on the map: all of them, or a sample.

    Attributes:
        rows: their row numbers in the embeddings, ascending, ``[n]``.
        places: their coordinates, ``[n, 2]``.
        neighbours: the nearest nodes on the map of each node, as positions in `rows`, ``[n, k]``.
        cosines: the cosine similarities to these neighbours, ``[n, k]``.
        method: ``umap`` or ``pca``.
    """

    rows: Array
    places: Array
    neighbours: Array
    cosines: Array
    method: str


@dataclass(frozen=True, eq=False)
class Contents:
    """Everything that the page shows, without markup.

    `assigned` is the group of each node, −1 for none; it is None if there are no groups. `answers`
    are the summaries of `graphcl.runs.files`, and that of the groups. `title` and `note` are the
    sender's.
    """

    name: str
    config: runs.RunConfig
    result: dict[str, Any]
    metrics: list[dict[str, Any]]
    nodes: Nodes
    points: MapPoints
    confusion: Confusion | None
    components: int | None
    homophily: float | None
    notes: list[str] = field(default_factory=list)
    effective_rank: float | None = None
    mean_cosine: float | None = None
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    fates: tuple[tuple[str, str, int], ...] = ()
    columns: Sequence[Original] = ()
    assigned: Array | None = None
    ranking: Ranking | None = None
    title: str = ""
    note: str = ""


class Sharded:
    """Embeddings in shards, with their store in parts.

    Attributes:
        z: the embeddings, on disk.
        nodes: ids, labels, split and degrees.
        scored: rows of the labelled nodes that the probe sees, ascending.
    """

    def __init__(self, run: Path, embeddings: Path, graph: Any, *, seed: int) -> None:
        """Opens and checks both.

        Raises:
            ParameterError: `graph` is not a store in parts.
            RunError: the shards are damaged, of another model or of other parts.
        """
        given = str(graph) if isinstance(graph, str | Path) else None
        why = f"the store in parts that {option('embeddings')} are of"
        require(given is not None, "report", option("graph"), why, graph)
        self.z, self.nodes = shards_of_run(run, embeddings, given, "report")
        self._path = str(given)
        y = self.nodes.classes
        labelled = np.zeros(0, np.int64) if y is None else np.flatnonzero(y >= 0)
        self.scored = labelled[sampled_rows(len(labelled), seed, SCORED_NODES)]

    def notes(self) -> list[str]:
        """Returns what the page says about this."""
        found = [f"The embeddings are those in {self.z.path.name}. {LEFT_OUT}"]
        y = self.nodes.classes
        if y is not None and len(self.scored) < int((y >= 0).sum()):
            found.append(f"The probe sees {len(self.scored):,} of the labelled nodes.")
        return found

    def result(self, result: dict[str, Any], labelled: Any) -> dict[str, Any]:
        """Returns what the run says of its training, with facts of these parts and their probe.

        `labelled` is a graph of the labels of the scored nodes, or None.
        """
        facts = runs.GraphFacts.plain(read_store(Path(self._path)), self._path)
        of_others = ("effective_rank", "mean_cosine", "probe", "probe_skipped", "warnings")
        kept = {key: value for key, value in result.items() if key not in of_others}
        scores = probe_scores(self.z[self.scored], labelled, "no node has a label")
        return kept | scores | {"graph": asdict(facts)}


def probe_scores(z: Array, labelled: Any, why: str) -> dict[str, Any]:
    """Returns the scores of the probe as a result has them; or why not, if there are no labels."""
    try:
        probe = None if labelled is None else asdict(linear_probe(z, labelled))
        return {"probe": probe, "probe_skipped": why if probe is None else None}
    except GraphError as error:
        return {"probe": None, "probe_skipped": str(error)}


def gather(
    run: Path,
    graph: AnyGraph | None,
    *,
    method: str = "umap",
    seed: int = 0,
    why: str = "",
    result: dict[str, Any] | None = None,
    node_type: str | None = None,
    sharded: Sharded | None = None,
    columns: Callable[[Nodes], tuple[Sequence[Original], str]] = lambda _: ((), ""),
    title: str = "",
    note: str = "",
) -> Contents:
    """Reads a run and measures what its report shows.

    Args:
        run: the run directory, or the folder of a version.
        graph: the graph that it was trained on, or None if it cannot be read; then the measures
            that need edges are left out, and a note explains it.
        method: how the map is drawn; see `project`.
        seed: seed of the samples, the clusters and the map.
        why: the reason if there is no graph.
        result: what `result.json` would say, if the run has none.
        node_type: of a typed graph: the type that the page is about. Its edges join several types,
            so `graph` is None.
        sharded: embeddings in shards, instead of those of the run; then `graph` is None.
        columns: returns what is known of nodes, to show and to describe groups by; why not all.
        title: of the page; empty is the graph's name.
        note: what the sender says to the reader.

    Raises:
        RunError: the run is damaged, or the numbers of embeddings and nodes differ.
    """
    config, folder = runs.read_config(run), run
    result = result or runs.read_result(run)
    if node_type is not None:
        folder, result = type_folder(run, node_type), _of_type(run, result, node_type)
    z: Any = runs.read_embeddings(folder) if sharded is None else sharded.z
    nodes = read_nodes(run, node_type) if sharded is None else sharded.nodes
    if nodes is None and graph is not None:
        nodes = describe_nodes(graph)
    if nodes is None:
        raise RunError(f"{run}: has no node ids, and its graph cannot be read ({why})")
    demand(
        nodes.num_nodes == len(z) and (graph is None or graph.num_nodes == len(z)),
        f"{run}: {len(z)} embeddings, but a graph of {nodes.num_nodes} nodes",
        RunError,
    )
    notes = [] if graph is not None else [f"The graph could not be read again: {why}"]
    if node_type is not None:
        notes = [
            f"This page is about the nodes of type {node_type!r}. Edges join nodes of several "
            "types: what is measured on edges of one type is left out."
        ]
    labelled = _labels_only(nodes)
    scored: Any = z
    if sharded is not None:
        notes = sharded.notes()
        labelled = _labels_only(nodes, sharded.scored)
        result = sharded.result(result, labelled)
        scored = z[sharded.scored]
    points = _place(z, method, seed)
    if len(points.rows) < len(z):
        notes.append(f"The map shows {len(points.rows):,} of {len(z):,} nodes, drawn at random.")
    _log.info("groups")
    answers, (known, _) = runs.read_answers(folder), columns(nodes)
    assigned = _kept_groups(folder, answers, nodes)
    if assigned is None:
        answers.pop("cluster", None)
        with suppress(GraphError):  # too few nodes
            groups = cluster(z, columns=known, seed=seed)
            named = replace(groups, ids=nodes.ids[:])
            assigned, answers["cluster"] = groups.assigned, named.summary()
    edges = None if graph is None else adjacency(graph)
    name = str(result.get("graph", {}).get("name") or run_root(run).name)
    ids, predicted = nodes.ids[:].tolist(), answers.get("predict", {})
    return Contents(
        name=name if node_type is None else f"{name}: {node_type}",
        config=config,
        result=result,
        metrics=runs.read_metrics(run),
        nodes=nodes,
        points=points,
        effective_rank=_fact(result, "effective_rank", effective_rank, z, seed),
        mean_cosine=_fact(result, "mean_cosine", mean_cosine, z, seed),
        confusion=None if labelled is None else _confusion(scored, labelled, result),
        components=None if edges is None else int(connected_components(edges, directed=False)[0]),
        homophily=None if edges is None else _homophily(edges, nodes.classes),
        notes=notes,
        answers=answers,
        fates=_fates(read_preparation(folder)),
        columns=known,
        assigned=assigned,
        ranking=read_ranking(runs.read_answer_table(folder, "predict"), predicted, ids),
        title=title,
        note=note,
    )


def _kept_groups(folder: Path, answers: dict[str, dict[str, Any]], nodes: Nodes) -> Array | None:
    """Returns the groups that `graphcl cluster` gave these nodes; None if none are kept."""
    table = runs.read_answer_table(folder, "cluster")
    ids, kept = (list(map(str, some)) for some in (nodes.ids[:].tolist(), table.get("id", [])))
    same = "cluster" in answers and ids == kept
    numbers = table.get("group", [])
    if not same or not all(type(one) is int and 0 <= one <= len(numbers) for one in numbers):
        return None
    return np.array(numbers, np.int64) - 1


def _of_type(run: Path, result: dict[str, Any], node_type: str) -> dict[str, Any]:
    """Returns what the result of a typed graph says of one type; what is of all is left out."""
    schema = runs.read_schema(run)
    features = {one["name"]: one["num_features"] for one in schema["types"]}
    joining = (one for one in schema["relations"] if node_type in (one["source"], one["target"]))
    counts = {"features": features[node_type], "edges": sum(one["num_edges"] for one in joining)}
    first = result.get("probe") or {}
    probes = {first.get("type"): first, **first.get("others", {})}
    whole = ("effective_rank", "mean_cosine", "class_names")
    kept = {key: value for key, value in result.items() if key not in whole}
    probe = {"probe": probes.get(node_type), "probe_skipped": "the type has no scores"}
    return kept | probe | {"graph": {**result.get("graph", {}), **counts}}


def adjacency(graph: AnyGraph) -> scipy.sparse.csr_array:
    """Returns the edges as one sparse matrix, block-diagonal for several graphs."""
    graphs = graph.graphs if isinstance(graph, GraphCollection) else (graph,)
    blocks = [
        scipy.sparse.csr_array(
            (np.ones(len(one.indices), np.int8), one.indices, one.indptr),
            shape=(one.num_nodes, one.num_nodes),
        )
        for one in graphs
    ]
    return blocks[0] if len(blocks) == 1 else scipy.sparse.block_diag(blocks, format="csr")


def _place(z: Array, method: str, seed: int) -> MapPoints:
    rows = sampled_rows(len(z), derive(seed, "map"), MAP_NODES)
    shown = z[rows]
    if len(shown) > EXACT_ROWS:
        shown = principal(shown, INDEX_DIMENSIONS)
    _log.info("nearest neighbours of %d nodes", len(rows))
    neighbours, cosines = nearest(shown, NEIGHBOURS)
    method = usable_method(method, len(rows))
    _log.info("map by %s", method)
    places = project(shown, neighbours, cosines, method=method, seed=seed)
    return MapPoints(rows, places, neighbours, cosines, method)


def _fact(
    result: dict[str, Any], name: str, measure: Callable[..., float], z: Array, seed: int
) -> float | None:
    """Returns what the run says of its embeddings; what it does not say is measured now."""
    known = result.get(name)
    if isinstance(known, int | float):
        return float(known)
    return measure(z, seed=seed) if len(z) > 1 else None


def _confusion(z: Array, labelled: Nodes, result: dict[str, Any]) -> Confusion | None:
    if labelled.num_classes > MOST_CONFUSED:
        return None
    try:
        probe = result.get("probe") or {}
        strength = probe.get("strength") or linear_probe(z, labelled).strength
        return probe_confusion(z, labelled, strength=float(strength))
    except GraphError:
        return None  # too few labels for a probe; result.json has the reason


def _labels_only(nodes: Nodes, rows: Array | None = None) -> Nodes | None:
    """Returns labels and splits of all nodes, or of some, for the probe; None without classes."""
    if nodes.classes is None or (rows is not None and not len(rows)):
        return None
    if rows is None:
        return nodes
    held = {name: getattr(nodes, name) for name in ("y", *MASKS)}
    some = {name: one[rows] for name, one in held.items() if one is not None}
    return Nodes(nodes.name, len(rows), **some)


def _fates(prepared: Preparation | None) -> tuple[tuple[str, str, int], ...]:
    """Returns what became of each column, of tags and of vectors, and its missing values."""
    if prepared is None:
        return ()
    columns = [(one.name, one.describe(), one.missing) for one in prepared.columns]
    return (*columns, *((option(one.kind), one.describe(), 0) for one in prepared.beside))


def _homophily(edges: scipy.sparse.csr_array, y: Array | None) -> float | None:
    """Returns the share of edges within one class, among edges between labelled nodes."""
    if y is None:
        return None
    source, target = np.repeat(y, np.diff(edges.indptr)), y[edges.indices]
    known = (source >= 0) & (target >= 0)
    return float((source == target)[known].mean()) if known.any() else None
