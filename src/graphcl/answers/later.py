"""What came after a day, scored by what was known by then.

Tables with times are read twice: as of the day, and as of the run's own day. What becomes of their
columns is decided by the first reading, and a model is trained on it. The second one says what came
later, and nothing of it is seen but what is scored.

- A link is scored if its two nodes were known by the day, and were not linked. It is ranked among
  pairs that are not linked in the second reading either.
- A label is scored if it was not known by the day. A node that was known is embedded as of the day.
  One that came later is embedded alone, from its own columns and its edges to nodes that were known
  by the day, as far as these came no later than itself: on its day, where times are dates.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.answers.labels import known_labels
from graphcl.answers.learning import learn
from graphcl.answers.prediction import Predictions
from graphcl.errors import GraphError, option
from graphcl.evaluation.links import HeldOutEdges, _contains, _draw_negatives
from graphcl.evaluation.prediction_error import measure
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Relation
from graphcl.graphs.validation import is_labelled
from graphcl.runs.graph import run_tables
from graphcl.store.columns import Ids
from graphcl.tabular.build import load_tables, load_timed
from graphcl.tabular.tables import Came

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Later:
    """A graph as of a day, and what came later.

    Attributes:
        graph: as of the day.
        late: as of a later day, with the same columns.
        came: when nodes and edges of `late` came.
        places: by type, the row in `graph` of each node of `late`; −1 if it came later.
        after: the day.
    """

    graph: Graph
    late: Graph
    came: Came
    places: dict[str, Array]
    after: str


def read_later(run: Path, after: Any) -> Later:
    """Reads the tables of a run as of a day, and as of its own.

    Raises:
        RunError: the run was not trained on tables, or they are not read on its word.
        GraphError: the tables have no times.
    """
    name, options = run_tables(run)
    fresh: dict[str, Any] = dict.fromkeys(("preparation", "preparations", "edge_preparations"))
    graph, _ = load_tables(name, replace(options, until=after, **fresh))
    made = {kind: one.preparation for kind, one in graph.nodes.items() if one.preparation}
    if options.is_typed:
        relations = graph.relations.items()
        of_edges = {":".join(key): one.preparation for key, one in relations if one.preparation}
        fresh = {"preparations": made, "edge_preparations": of_edges}
    else:
        fresh = {"preparation": next(iter(made.values()), None)}
    late, came = load_timed(name, replace(options, **fresh))
    places = {
        kind: Ids(own.num_nodes if own.node_ids is None else own.node_ids).find(
            late.nodes[kind].ids
        )
        for kind, own in graph.nodes.items()
    }
    return Later(graph, late, came, places, str(after))


# Links


def later_edges(
    later: Later, relation: str | None = None, *, negatives: int = 100, seed: int = 0
) -> HeldOutEdges:
    """Returns the pairs that were linked after the day, and pairs that were not.

    Args:
        later: the graph as of the day, and what came later.
        relation: of a typed graph: the relation that is judged.
        negatives: pairs per later link, as `graphcl.evaluation.links.hold_out_edges` draws them.
        seed: decides the negatives.

    Raises:
        GraphError: no pair of known nodes was linked later.
    """
    graph, random = later.graph, np.random.default_rng(seed)
    judged = graph.relation(relation or next(iter(graph.relations))[1])
    targets, within = len(judged.indptr) - 1, judged.source == judged.target
    before = [_codes(one, judged) for one in graph.relations.values()]
    since = {key: _codes(one, judged, later.places) for key, one in later.late.relations.items()}
    linked = np.unique(np.concatenate([one[0] for one in (*before, *since.values())]))
    codes, ends = since[judged.key]
    fresh = np.setdiff1d(codes, np.concatenate([one[0] for one in before]))
    if not len(fresh):
        raise GraphError(f"{graph.name}: no two nodes of {later.after} were linked later")
    edges = ends[np.isin(codes, fresh)]
    edges = edges[random.permutation(len(edges))]  # of both directions, one at random
    low, high = np.sort(edges, axis=1).T if within else edges.T
    edges = edges[np.unique(low * np.int64(targets) + high, return_index=True)[1]]
    drawn = _draw_negatives(judged, edges[:, 0], linked, negatives, random, graph.name)
    return HeldOutEdges(graph, judged, edges, drawn)


def _codes(
    relation: Relation, judged: Relation, places: dict[str, Array] | None = None
) -> tuple[Array, Array]:
    """Returns a number for each pair that a relation links, whatever the direction, and its ends.

    There is none of relations that join other types, nor of nodes without a place.
    """
    ends = relation.edge_index().T
    if {relation.source, relation.target} != {judged.source, judged.target}:
        ends = ends[:0]
    if places is not None:
        kinds = (relation.source, relation.target)
        ends = np.stack(
            [places[kind][one] for kind, one in zip(kinds, ends.T, strict=True)], axis=1
        )
        ends = ends[(ends >= 0).all(axis=1)]
    if relation.source != judged.source:
        ends = ends[:, ::-1]
    low, high = np.sort(ends, axis=1).T if judged.source == judged.target else ends.T
    return low * np.int64(len(judged.indptr) - 1) + high, ends


# Labels


def predict_later(
    model: Any,
    later: Later,
    *,
    node_type: str | None = None,
    first_hop: slice | None = None,
    seed: int = 0,
) -> Predictions:
    """Predicts labels that came after a day from those that were known by then.

    Args:
        model: a model of the graph as of the day.
        later: that graph, and what came later.
        node_type: of a graph with types: which; None is the only one with labels.
        first_hop: the columns of the embedding that hold its first hop.
        seed: decides the folds.

    Returns:
        The nodes whose labels came later, by rows of the later graph. `Predictions.error` is that
        of labels known by the day, each held out; `Predictions.test` that of those that came later.

    Raises:
        GraphError: no label came later, or none was known.
    """
    graph = later.graph
    kind = node_type or graph.labelled_type or next(iter(graph.nodes))
    own, late, places = graph.type(kind), later.late.type(kind), later.places[kind]
    if own.y is None or late.y is None:
        raise GraphError(f"{graph.name}: {kind} nodes have no labels as of {later.after}")
    z = model.transform(graph)
    z = z[kind] if isinstance(z, dict) else z
    known = known_labels(own.y, own.ids, own.class_names)
    before = np.zeros(late.num_nodes, bool)
    before[places >= 0] = known.known[places[places >= 0]]
    rows = np.flatnonzero(is_labelled(late.y) & ~before)
    if not len(rows):
        raise GraphError(
            f"{graph.name}: no label came after {later.after}; {option('label_time')} says when "
            "labels came, else they came with their nodes"
        )
    truth = known_labels(late.y, late.ids, late.class_names)
    seen = graph if graph.is_plain else own
    learned = learn(z, own.ids, known, graph=seen, first_hop=first_hop, seed=seed)
    names = [str(one) for one in known.classes]
    columns = [names.index(str(one)) if str(one) in names else -1 for one in truth.classes]
    more = np.cumsum([one < 0 for one in columns]) + len(names) - 1  # classes nobody knew
    columns = np.where(np.array(columns) < 0, more, columns)
    wide = max(len(names), int(columns.max()) + 1)
    found = np.zeros((len(rows), wide), np.float32)
    there = places[rows] >= 0
    found[there, : len(names)] = learned.of_rows(places[rows[there]])
    near = _Neighbours(later, kind)
    live = model.live(graph, node_type=None if graph.is_plain else kind)
    for place in np.flatnonzero(~there).tolist():  # alone: it sees no other that came later
        x = np.zeros(0, np.float32) if late.x is None else _row(late.x, rows[place])
        plain, texts, same = near.of(int(rows[place]))
        joined = {"rows": plain} if graph.is_plain else {"neighbours": texts}
        one = live.embed_new(x, **joined)[None]
        found[place, : len(names)] = learned.of_new(one, x[None], [same])[0]
    targets = np.zeros((len(rows), wide), np.int64)
    targets[:, columns] = truth.targets[rows]
    how = {"nodes": len(rows), "how": "labels that came later"}
    probe = learned.probe
    return Predictions(
        rows=rows,
        ids=late.ids[rows],
        classes=(*known.classes, *np.array(truth.classes, object)[columns >= len(names)]),
        probabilities=found,
        several=known.several,
        known=targets,
        error=probe.error,
        labelled=tuple(known.targets[known.known].sum(axis=0).tolist()),
        strength=probe.strength,
        temperature=probe.temperature,
        test=measure(found.astype(np.float64), targets, known.several, **how),
        evidence=learned.weights,
    )


def _row(x: Any, row: int) -> Array:
    found = x[[row]]
    dense = found.toarray() if hasattr(found, "toarray") else np.asarray(found)
    return np.asarray(dense[0], np.float32)


class _Neighbours:
    """The nodes of a day that a node which came later is linked to, as far as it was when it came."""

    def __init__(self, later: Later, kind: str) -> None:
        self._ids = {name: one.ids for name, one in later.graph.nodes.items()}
        self._came, self._kind = later.came.nodes[kind], kind
        self._ends: list[tuple[Any, bool, Array, Array, Array]] = []
        for key, (sources, targets, times) in later.came.edges.items():
            for own, other, ends, towards in (
                (key[0], key[2], (sources, targets), False),
                (key[2], key[0], (targets, sources), True),
            ):
                if own == kind:
                    rows = later.places[other][ends[1].astype(np.int64)]
                    order = np.argsort(ends[0], kind="stable")
                    held = (ends[0][order].astype(np.int64), rows[order], times[order])
                    self._ends.append(((key, other), towards, *held))
        self._plain = later.graph.is_plain

    def of(self, row: int) -> tuple[Array, list[str], Array]:
        """Returns rows, texts with relations, and the rows of nodes of the same type."""
        texts, same = list[str](), [np.zeros(0, np.int64)]
        for (key, other), towards, owners, rows, times in self._ends:
            part = slice(*np.searchsorted(owners, [row, row + 1]))
            met = np.unique(rows[part][(rows[part] >= 0) & (times[part] <= self._came[row])])
            mark = "<" if towards and key[0] == key[2] else ""
            texts += [f"{mark}{':'.join(key)}/{self._ids[other][one]}" for one in met.tolist()]
            same += [met] if other == self._kind else []
        joined = np.unique(np.concatenate(same))
        return joined, texts, joined
