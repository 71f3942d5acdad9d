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
from sklearn.base import clone

from graphcl.answers.evidence import embedding_parts
from graphcl.answers.inputs import known_labels
from graphcl.answers.learning import learn
from graphcl.answers.linking import LinkEvaluation, evaluate_links
from graphcl.answers.predicted import Predictions
from graphcl.arrays import Array
from graphcl.errors import demand, option
from graphcl.evaluation.calibration import CalibratedProbe
from graphcl.evaluation.links import HeldOutEdges, hold_out_edges, pair_codes
from graphcl.evaluation.prediction_error import measure
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import NODE, Relation
from graphcl.runs.files import read_config
from graphcl.runs.graph import run_tables
from graphcl.store.columns import Ids
from graphcl.tabular.build import load_met, load_tables

LATER = "labels that came later"
MOST_NEW, MOST_TYPED = 2000, 200  # later nodes that are embedded, each alone; others are not scored


@dataclass(frozen=True, eq=False)
class Later:
    """A graph as of a day, and what came later.

    Attributes:
        graph: as of the day.
        late: as of a later day, with the same columns.
        met: by type of `late`, whom its nodes were linked to when they came, as `Tables.met` says.
        places: by type, the row in `graph` of each node of `late`; −1 if it came later.
        after: the day.
        structural: whether features are computed from edges; those of later nodes tell more.
    """

    graph: Graph
    late: Graph
    met: dict[str, Any]
    places: dict[str, Array]
    after: str
    structural: bool


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
    fresh = {"preparation": made.get(NODE)}
    if options.is_typed:
        held = {":".join(key): one.preparation for key, one in graph.relations.items()}
        of_edges = {key: one for key, one in held.items() if one is not None}
        fresh = {"preparations": made, "edge_preparations": of_edges}
    late, met = load_met(name, replace(options, **fresh))
    places = {
        kind: Ids(own.num_nodes if own.node_ids is None else own.node_ids).find(
            late.nodes[kind].ids
        )
        for kind, own in graph.nodes.items()
    }
    return Later(graph, late, met, places, str(after), options.features != "columns")


def links_after(
    run: Path, model: Any, after: Any, *, relation: str | None = None, **how: Any
) -> LinkEvaluation:
    """Ranks the pairs of a run's tables that were linked after a day, as `evaluate_links` does.

    Args:
        run: the run.
        model: its settings are used.
        after: the day.
        relation: of a typed graph: the relation that is judged.
        how: `negatives` and `seed`, as of `evaluate_links`.
    """
    later = read_later(run, after)
    held = later_edges(later, relation, negatives=how["negatives"], seed=how["seed"])
    how["share"] = len(held.edges) / (len(held.edges) + held.relation.num_edges)
    found = evaluate_links(model, later.graph, relation=relation, held=held, **how)
    return replace(found, after=later.after)


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
    known = {key: _among(one, later) for key, one in later.late.relations.items()}
    judged = later.graph.relation(relation or next(iter(known))[1])
    before = [
        codes
        for one in later.graph.relations.values()
        if (codes := pair_codes(one, judged)) is not None
    ]
    fresh = np.setdiff1d(pair_codes(known[judged.key], judged), np.concatenate(before))
    demand(len(fresh), f"{later.graph.name}: no two nodes of {later.after} were linked later")
    whole = replace(later.graph, relations=known)
    held = hold_out_edges(whole, relation, negatives=negatives, seed=seed, held=fresh)
    return replace(held, graph=later.graph, relation=judged)


def _among(relation: Relation, later: Later) -> Relation:
    """Returns the edges of the later graph between nodes that were known by the day."""
    ends = zip((relation.source, relation.target), relation.edge_index(), strict=True)
    sources, targets = (later.places[kind][rows] for kind, rows in ends)
    order = np.lexsort((sources, targets))
    order = order[(sources[order] >= 0) & (targets[order] >= 0)]
    count = later.graph.nodes[relation.target].num_nodes
    indptr = np.searchsorted(targets[order], np.arange(count + 1))
    return Relation(*relation.key, indptr, sources[order], undirected=relation.undirected)


def predict_after(
    run: Path, model: Any, after: Any, *, node_type: str | None = None, seed: int = 0
) -> Predictions:
    """Predicts labels that came after a day from those that were known by then.

    Args:
        run: the run.
        model: its settings are used.
        after: the day.
        node_type: of a graph with types: which; None is the only one with labels.
        seed: decides the folds.

    Returns:
        The nodes whose labels came later, by rows of the later graph. `Predictions.error` is that
        of labels known by the day, each held out; `Predictions.test` that of those that came later.

    Raises:
        GraphError: no label came later, or none was known.
    """
    later = read_later(run, after)
    graph = later.graph
    kind = node_type or graph.labelled_type or next(iter(graph.nodes))
    own, late, places = graph.type(kind), later.late.type(kind), later.places[kind]
    demand(
        own.y is not None and late.y is not None,
        f"{graph.name}: {kind} nodes have no labels as of {later.after}",
    )
    demand(
        not (own.has_number or late.has_number),
        f"{graph.name}: a number that came later is not scored; classes are",
    )
    known = known_labels(own.y, own.ids, own.class_names)
    truth = known_labels(late.y, late.ids, late.class_names)
    rows = np.flatnonzero(truth.known & ~((places >= 0) & known.known[places]))
    new, random = np.flatnonzero(places[rows] < 0), np.random.default_rng(seed)
    most = (0 if later.structural else MOST_NEW) if graph.is_plain else MOST_TYPED
    rows = np.delete(rows, random.permutation(new)[most:])
    demand(
        len(rows),
        f"{graph.name}: no label came after {later.after}; {option('label_time')} says when "
        "labels came, else they came with their nodes",
    )
    model = clone(model).set_output(transform="default").fit(graph)
    z = model.transform(graph)
    z = z[kind] if isinstance(z, dict) else z
    parts = embedding_parts(read_config(run).recipe, own.num_features)
    seen = graph if graph.is_plain else own
    learned = learn(z, own.ids, known, graph=seen, parts=parts, seed=seed)
    # Classes that nobody knew have no probability; they come last.
    names = [str(one) for one in known.classes]
    names += [name for name in map(str, truth.classes) if name not in names]
    found = np.zeros((len(rows), len(names)), np.float32)
    there, width = places[rows] >= 0, len(known.classes)
    found[there, :width] = learned.of_rows(places[rows[there]])
    live = model.live(graph, node_type=None if graph.is_plain else kind)
    for place in np.flatnonzero(~there).tolist():  # alone: it sees no other that came later
        near, same = _neighbours(later, kind, int(rows[place]))
        x = np.zeros((1, 0), np.float32) if late.x is None else late.x[rows[place : place + 1]]
        x = np.asarray(x.toarray() if hasattr(x, "toarray") else x, np.float32)
        joined = {"rows": [same]} if graph.is_plain else {"neighbours": [near]}
        found[place, :width] = learned.of_new(live.embed_new(x, **joined), x, [same])[0]
    targets = np.zeros((len(rows), len(names)), np.int64)
    targets[:, [names.index(str(one)) for one in truth.classes]] = truth.targets[rows]
    assert isinstance(learned.probe, CalibratedProbe)
    scored = measure(found.astype(np.float64), targets, known.several, nodes=len(rows), how=LATER)
    return Predictions(
        rows=rows,
        ids=late.ids[rows],
        classes=(*known.classes, *names[width:]),
        probabilities=found,
        several=known.several,
        known=targets,
        error=learned.probe.error,
        labelled=tuple(known.targets[known.known].sum(axis=0).tolist()),
        strength=learned.probe.strength,
        temperature=learned.probe.temperature,
        test=scored,
        evidence=learned.weights,
    )


def _neighbours(later: Later, kind: str, row: int) -> tuple[list[str], Array]:
    """Returns the nodes of the day that a node was linked to when it came.

    They are texts with their relations, as `GraphCL.embed_new` takes them, and the rows of those of
    the same type.
    """
    texts, same = list[str](), [np.zeros(0, np.int64)]
    for (key, towards), (owners, others) in later.met[kind].items():
        source, _, target = key.split(":")
        other = source if towards else target
        rows = later.places[other][others[slice(*np.searchsorted(owners, [row, row + 1]))]]
        ids = later.graph.nodes[other].ids
        mark = "<" if towards and source == target else ""
        texts += [f"{mark}{key}/{ids[one]}" for one in rows[rows >= 0].tolist()]
        same += [rows[rows >= 0]] if other == kind else []
    return texts, np.unique(np.concatenate(same))
