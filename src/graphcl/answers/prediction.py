"""Labels and calibrated probabilities for nodes without a label, from those that have one."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.answers.evidence import first_hop
from graphcl.answers.inputs import chosen_rows, embeddings_of, graph_of, ids_of
from graphcl.answers.labels import KnownLabels, known_labels
from graphcl.answers.learning import learn
from graphcl.errors import GraphError, RunError, counted, is_command, option, require
from graphcl.evaluation.prediction_error import PredictionError, measure
from graphcl.files.records import Answer
from graphcl.graphs.collection import of_labelled_type
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.validation import is_labelled

Array = npt.NDArray[Any]
NODES = ("unlabelled", "all")
LEARN = ("all", "train")


@dataclass(frozen=True, eq=False, repr=False)
class Predictions(Answer):
    """Predicted labels, with their probabilities and their error.

    Attributes:
        rows: numbers of the nodes, ``[n]``; ascending, unless ids were asked for.
        ids: their ids.
        classes: the name or number of each class or label, in the order of the columns.
        probabilities: calibrated, float32 ``[n, classes]``; rows sum to 1 unless a node may have
            several labels. Those of labelled nodes are by a probe that has not seen their label.
        several: whether a node may have several labels.
        known: 0/1 ``[n, classes]``: what was given; a row of −1 for an unlabelled node.
        error: what to expect, measured on labelled nodes that were held out; None if no class has
            two labelled nodes.
        labelled: number of labelled nodes per class.
        strength: C of the penalty with the largest weight in the probe's average.
        temperature: what its scores are divided by.
        test: the error on test nodes, whose labels were hidden; None if none were.
        evidence: what the predictions rest on, and how much on each; see
            `graphcl.answers.evidence`.
    """

    rows: Array
    ids: Array
    classes: tuple[Any, ...]
    probabilities: Array
    several: bool
    known: Array
    error: PredictionError | None
    labelled: tuple[int, ...]
    strength: float
    temperature: float
    test: PredictionError | None = None
    evidence: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> list[Any]:
        """The most probable class of each node, or the list of labels above probability 0.5."""
        if self.several:
            return [self._names(row > 0.5) for row in self.probabilities]
        return [self.classes[best] for best in self.probabilities.argmax(axis=1).tolist()]

    def title(self) -> str:
        """Returns what is said above the table."""
        found = f"Predictions: {counted(len(self), 'node')}, {len(self.classes)} classes"
        if self.error is None:
            return found
        word = "micro-F1" if self.several else "accuracy"
        score = self.error.micro_f1 if self.several else self.error.accuracy
        return f"{found}; expected {word} {score:.3f} (majority {self.error.majority:.3f})"

    def columns(self) -> dict[str, Any]:
        """Returns the table that `graphcl predict` writes: ids, labels, one probability a class."""
        table: dict[str, Any] = {"id": self.ids, "label": self.labels}
        if not self.several:
            table["probability"] = self.probabilities.max(axis=1)
        if is_labelled(self.known).any():
            known = [self._names(row > 0) if row.min() >= 0 else None for row in self.known]
            table["given"] = known if self.several else [names and names[0] for names in known]
        for place, name in enumerate(self.classes):
            table[f"p:{name}"] = self.probabilities[:, place]
        return table

    def counts(self) -> dict[Any, int]:
        """Returns how many of these nodes get each class or label."""
        given = self.probabilities > 0.5
        if not self.several:
            best = self.probabilities.argmax(axis=1)
            given = best[:, None] == np.arange(len(self.classes))
        return dict(zip(self.classes, given.sum(axis=0).tolist(), strict=True))

    def score(self, truth: KnownLabels) -> PredictionError | None:
        """Returns the error on those nodes whose label `truth` knows; None if there are none."""
        tested = truth.known[self.rows] & ~is_labelled(self.known)
        if not tested.any():
            return None
        targets = truth.targets[self.rows][tested]
        return measure(
            self.probabilities[tested].astype(np.float64),
            targets,
            self.several,
            nodes=int(tested.sum()),
            how="held-out nodes",
        )

    def _names(self, chosen: Array) -> list[Any]:
        return [self.classes[place] for place in np.flatnonzero(chosen)]


def predict(
    source: Any, graph: Any = None, labels: Any = None, *, nodes: Any = "unlabelled", seed: int = 0
) -> Predictions:
    """Returns labels and calibrated probabilities of nodes, learned from the labelled ones.

    The probe is logistic regression on frozen embeddings and, if there is a graph, on the columns
    of nodes and of their neighbours: see `graphcl.answers.evidence`. It is averaged over these and
    over penalties. Their weights and the temperatures of the probabilities follow from the
    likelihood of labelled nodes that were held out in turn, and `Predictions.error` is measured on
    these. Labels never change the embeddings.

    Args:
        source: embeddings ``[num_nodes, dim]``; a fitted model, which then embeds `graph`; or the
            path of a folder of shards, which `graphcl embed RUN PARTS` wrote. Of a typed graph, by
            type: the type that has labels is predicted.
        graph: gives ids, class names, and the labels if none are passed. Of shards, the path of the
            store in parts.
        labels: class numbers or names ``[num_nodes]``, with −1 or None where a node has none; 0/1
            ``[num_nodes, labels]`` where nodes have several, with a row of −1 for a node that has
            none; a mapping from ids to a label or a list of labels; or a pandas Series, by its
            index of ids.
        nodes: ``unlabelled``, ``all``, or a list of ids.
        seed: decides the folds, with the ids: a node's row does not.

    Raises:
        GraphError: no labels, fewer than two classes, no node without a label, or arrays that do
            not fit each other.
        RunError: a shard is missing, torn, or not of this set.
    """
    _check_nodes(nodes)
    source, graph = of_labelled_type(source, graph_of(graph), "predict")
    recipe = getattr(source, "recipe_", None)
    columns = None if recipe is None else first_hop(vars(recipe), graph.num_features)
    z = embeddings_of(source, graph, "predict")
    ids = ids_of(graph, z)
    if labels is None:
        if graph is None or graph.y is None:
            raise GraphError("predict: there are no labels; pass labels=")
        names = graph.class_names if hasattr(graph, "class_names") else graph.graphs[0].class_names
        known = known_labels(graph.y, ids, names)
    else:
        known = labels if isinstance(labels, KnownLabels) else known_labels(labels, ids)
    return predict_known(z, ids, known, nodes=nodes, seed=seed, graph=graph, columns=columns)


def predict_nodes(
    z: Any,
    own: Nodes,
    labels: Any = None,
    *,
    nodes: Any = "unlabelled",
    learn: str = "all",
    seed: int = 0,
    name: str,
    hint: str = "",
    graph: Any = None,
    columns: slice | None = None,
) -> Predictions:
    """Returns `predict` of what a run keeps, which may hide the labels of test nodes.

    Args:
        z: embeddings.
        own: their nodes, with the run's labels and split.
        labels: None takes those of the run.
        nodes: ``unlabelled``, ``all``, or a list of ids.
        learn: from ``all`` labels; or from those of ``train`` and validation nodes: the error on
            the test nodes is then in `Predictions.test`.
        seed: decides the folds.
        name: the run, for messages.
        hint: where else labels may come from.
        graph: the graph, or the nodes of its type with their columns; None if it cannot be had.
        columns: of the embedding, those of its first hop.

    Raises:
        RunError: there are no labels, none to predict, or no split to learn from.
    """
    require(learn in LEARN, "predict", option("learn"), " or ".join(LEARN), learn)
    _check_nodes(nodes)
    if labels is None and own.y is None:
        some = "has no labels; give some: labels="
        if is_command():
            some = "has no labels; give some with --labels FILE (columns: id and label)"
        raise RunError(f"{name}: {some}{hint}")
    given = own.y.astype(np.int64) if labels is None and own.y is not None else labels
    truth = known_labels(given, own.ids, own.class_names if labels is None else ())
    split, more = own.split_codes, {"graph": graph, "columns": columns}
    if learn == "train":
        if split is None:
            raise RunError(
                f"{name}: has no split; {option('learn', 'train')} needs train and test nodes"
            )
        known = truth.only(np.isin(split, (1, 2)))
        found = predict_known(z, own.ids, known, nodes=nodes, seed=seed, **more)
        return replace(found, test=found.score(truth))
    if truth.known.all() and isinstance(nodes, str) and nodes != "all":
        too = "--all predicts them too" if is_command() else "nodes='all' predicts them too"
        hide = f"; {option('learn', 'train')} hides those of test nodes"
        hide = hide if split is not None else ""
        raise RunError(f"{name}: all {len(z):,} nodes have a label; {too}{hide}")
    return predict_known(z, own.ids, truth, nodes=nodes, seed=seed, **more)


def predict_known(
    z: Any,
    ids: Any,
    known: KnownLabels,
    *,
    nodes: Any = "unlabelled",
    seed: int = 0,
    graph: Any = None,
    columns: slice | None = None,
) -> Predictions:
    """Returns `predict` from labels that are prepared already.

    The graph, or the nodes of a type, have own columns to look at; `columns` are those of the
    embedding that hold its first hop. Of embeddings in shards, those of the labelled nodes and one
    block of the others are in memory.
    """
    if not known.known.any():
        raise GraphError("predict: no node has a label")
    if isinstance(nodes, str) and nodes == "unlabelled" and known.known.all():
        raise GraphError(
            f"predict: all {len(z):,} nodes have a label; hide some, or ask for all nodes"
        )
    learned = learn(z, ids, known, graph=graph, first_hop=columns, seed=seed)
    if not isinstance(nodes, str):
        rows = chosen_rows(ids, nodes, None, "predict")
    else:
        rows = np.arange(len(z)) if nodes == "all" else np.flatnonzero(~known.known)
    probe = learned.probe
    counts = known.targets.sum(axis=0)
    return Predictions(
        rows=rows,
        ids=ids[rows],
        classes=known.classes,
        probabilities=learned.of_rows(rows),
        several=known.several,
        known=np.where(known.known[rows, None], known.targets[rows], -1),
        error=probe.error,
        labelled=tuple(counts.tolist()),
        strength=probe.strength,
        temperature=probe.temperature,
        evidence=learned.weights,
    )


def _check_nodes(nodes: Any) -> None:
    known = not isinstance(nodes, str) or nodes in NODES
    require(known, "predict", "nodes", f"{' or '.join(NODES)}, or a list of ids", nodes)
