"""Labels and calibrated probabilities for nodes without a label, from those that have one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from graphcl.answers.evidence import embedding_parts, is_table, neighbour_means
from graphcl.answers.inputs import (
    KnownLabels,
    chosen_rows,
    embeddings_of,
    graph_of,
    ids_of,
    known_labels,
)
from graphcl.answers.learning import learn
from graphcl.answers.predicted import (
    OURS,
    Estimates,
    Predictions,
    RivalScore,
    check_ranking,
    explain,
    rank,
)
from graphcl.answers.rivals import Rival, plain_rivals
from graphcl.arrays import Array
from graphcl.errors import RunError, demand, is_command, option, require
from graphcl.evaluation.calibration import CalibratedProbe
from graphcl.evaluation.prediction_error import PredictionError, measure
from graphcl.evaluation.regression import LEVEL, NumberError, half_width, measure_number
from graphcl.graphs.collection import of_labelled_type
from graphcl.graphs.nodes import Nodes

NODES = ("unlabelled", "all")
LEARN = ("all", "train")


def predict(
    source: Any,
    graph: Any = None,
    labels: Any = None,
    *,
    nodes: Any = "unlabelled",
    wanted: Any = None,
    precision: float | None = None,
    cost: tuple[float, float] | None = None,
    shares: Mapping[Any, float] | None = None,
    using: str | None = None,
    rivals: bool = True,
    why: bool = False,
    level: float = LEVEL,
    label_kind: str = "auto",
    seed: int = 0,
) -> Predictions | Estimates:
    """Returns labels and calibrated probabilities of nodes, learned from the labelled ones.

    The probe is logistic regression on frozen embeddings and, if there is a graph, on the columns
    of nodes and of their neighbours: see `graphcl.answers.evidence`. It is averaged over these and
    over penalties, and smoothed over edges where that helps. All weights and the temperatures of
    the probabilities follow from the likelihood of labelled nodes that were held out in turn, and
    `Predictions.error` is measured on these. Labels never change the embeddings. A label that is a
    number has ridge regressions instead, and the answer is `Estimates`.

    Args:
        source: embeddings ``[num_nodes, dim]``; a fitted model, which then embeds `graph`; or the
            path of a folder of shards, which `graphcl embed RUN PARTS` wrote. Of a typed graph, by
            type: the type that has labels is predicted.
        graph: gives ids, class names, and the labels if none are passed. Of shards, the path of the
            store in parts.
        labels: class numbers or names ``[num_nodes]``, with −1 or None where a node has none; 0/1
            ``[num_nodes, labels]`` where nodes have several, with a row of −1 for a node that has
            none; numbers with NaN, to predict a number; a mapping from ids to a label or a list of
            labels; or a pandas Series, by its index of ids.
        nodes: ``unlabelled``, ``all``, or a list of ids.
        wanted: of two classes, the one that is looked for; the nodes that are most probably of it
            come first. None is the rarer one.
        precision: of two classes: call those nodes wanted of whom so many are right.
        cost: of two classes: call a node wanted where that costs less: the cost of a false alarm,
            and of a wanted node that is missed.
        shares: of the classes among all nodes, by name, where those of the labelled nodes are
            others.
        using: ``logistic regression``, ``boosted trees`` or another of `Predictions.rivals`, which
            predicts instead.
        rivals: measure what plain models reach on the same nodes.
        why: give reasons, in `Predictions.reasons` and the column `why`.
        level: of a number: how often it is to be within its interval.
        label_kind: whether labels are ``classes`` or a ``number``; ``auto`` takes numbers with
            fractions, and many different ones, for a number.
        seed: decides the folds, with the ids: a node's row does not.

    Raises:
        GraphError: no labels, fewer than two classes, no node without a label, or arrays that do
            not fit each other.
        RunError: a shard is missing, torn, or not of this set.
    """
    _check_nodes(nodes)
    source, graph = of_labelled_type(source, graph_of(graph), "predict")
    recipe = getattr(source, "recipe_", None)
    z = embeddings_of(source, graph, "predict")
    parts = None if recipe is None else embedding_parts(vars(recipe), graph.num_features)
    ids = ids_of(graph, z)
    if labels is None:
        demand(
            graph is not None and graph.y is not None, "predict: there are no labels; pass labels="
        )
        names = graph.class_names if hasattr(graph, "class_names") else graph.graphs[0].class_names
        known = known_labels(graph.y, ids, names)
    else:
        known = known_labels(labels, ids, kind=label_kind)
    return predict_known(
        z,
        ids,
        known,
        graph=graph,
        parts=parts,
        nodes=nodes,
        wanted=wanted,
        precision=precision,
        cost=cost,
        shares=shares,
        using=using,
        rivals=rivals,
        why=why,
        level=level,
        seed=seed,
    )


def predict_nodes(
    z: Any,
    own: Nodes,
    labels: Any = None,
    *,
    learn: str = "all",
    name: str,
    hint: str = "",
    graph: Any = None,
    parts: Mapping[str, slice] | None = None,
    nodes: Any = "unlabelled",
    label_kind: str = "auto",
    **asked: Any,
) -> Predictions | Estimates:
    """Returns `predict` of what a run keeps, which may hide the labels of test nodes.

    Args:
        z: embeddings.
        own: their nodes, with the run's labels and split.
        labels: None takes those of the run.
        learn: from ``all`` labels; or from those of ``train`` and validation nodes: the error on
            the test nodes is then in `Predictions.test`.
        name: the run, for messages.
        hint: where else labels may come from.
        graph: the graph, or the nodes of its type with their columns; None if it cannot be had.
        parts: which columns of the embedding are of what.
        nodes: as of `predict`, like `label_kind`.
        label_kind: whether labels are ``classes``, a ``number``, or ``auto``.
        asked: what else is asked of `predict`.

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
    given = (own.y, own.ids, own.class_names) if labels is None else (labels, own.ids)
    truth, split = known_labels(*given, kind=label_kind), own.split_codes
    asked |= {"graph": graph, "parts": parts, "nodes": nodes}
    if learn == "train":
        if split is None:
            raise RunError(
                f"{name}: has no split; {option('learn', 'train')} needs train and test nodes"
            )
        found: Any = predict_known(z, own.ids, truth.only(np.isin(split, (1, 2))), **asked)
        scored: Predictions | Estimates = replace(found, test=found.score(truth))
        return scored
    if truth.known.all() and isinstance(nodes, str) and nodes != "all":
        too = "--all predicts them too" if is_command() else "nodes='all' predicts them too"
        hide = "" if split is None else f"; {option('learn', 'train')} hides those of test nodes"
        raise RunError(f"{name}: all {len(z):,} nodes have a label; {too}{hide}")
    return predict_known(z, own.ids, truth, **asked)


def predict_known(
    z: Any,
    ids: Any,
    known: KnownLabels,
    *,
    graph: Any = None,
    parts: Mapping[str, slice] | None = None,
    nodes: Any = "unlabelled",
    wanted: Any = None,
    precision: float | None = None,
    cost: tuple[float, float] | None = None,
    shares: Mapping[Any, float] | None = None,
    using: str | None = None,
    rivals: bool = True,
    why: bool = False,
    level: float = LEVEL,
    seed: int = 0,
) -> Predictions | Estimates:
    """Returns `predict` from labels that are prepared already.

    Of embeddings in shards, those of the labelled nodes and one block of the others are in memory.
    """
    demand(known.known.any(), "predict: no node has a label")
    demand(
        not (isinstance(nodes, str) and nodes == "unlabelled" and known.known.all()),
        f"predict: all {len(z):,} nodes have a label; hide some, or ask for all nodes",
    )
    check_ranking(known, wanted, precision, cost)
    factor = _share_factors(known, shares)
    if isinstance(nodes, str):
        rows = np.flatnonzero(~known.known | (nodes == "all"))
    else:
        rows = chosen_rows(ids, nodes, None, "predict")
    plain = _rivals(known, graph, ids, seed) if rivals or using else []
    rival = next((one for one in plain if one.name == using), None)
    names = ", ".join(one.name for one in plain) or "none: there are no columns"
    there = using is None or rival is not None
    require(there, "predict", option("using"), f"one of {names}", using)
    learned = learn(z, ids, known, graph=graph, parts=parts, level=level, seed=seed)
    answers, held, evidence = learned.of_rows(rows), learned.probe.held_out, learned.weights
    if rival is not None:
        answers, held, evidence = _by_rival(rival, graph, rows), rival.held_out, {rival.name: 1.0}
    answers = _reweighted(learned.with_held_out(answers, rows, held), factor)
    truth = known.targets[learned.labelled]
    weight: Any = None if factor is None else truth @ factor

    def judge(found: Array, some: Array) -> PredictionError | NumberError:
        """Measures answers for labelled nodes that were held out, on some of these."""
        if known.number:
            return measure_number(found[some], truth[some], level=level)
        return measure(
            _reweighted(found[some], factor),
            truth[some],
            known.several,
            nodes=int(some.sum()),
            weight=None if weight is None else weight[some],
        )

    ours, told, tested = learned.probe.error, _told(learned.probe.held_out), _told(held)
    if factor is not None and told.any():
        ours = judge(learned.probe.held_out, told)
    found: Any = {"error": ours, "evidence": evidence}
    if rival is not None and tested.any():
        found["error"] = judge(held, tested)
    if ours is not None and plain:
        judged = {one.name: judge(one.held_out, told & _told(one.held_out)) for one in plain}
        scored = ({OURS: ours} | judged).items()
        found["rivals"] = tuple(RivalScore(name, one.headline[1], one) for name, one in scored)
    places = np.zeros(len(rows), np.int64)
    if known.number:
        if rival is not None and tested.any():
            half = half_width(np.abs(truth - held)[tested], level)
            answers = answers[:, :1] + np.array([0.0, -half, half])
        found |= dict(zip(("values", "low", "high"), answers.T, strict=True))
        found["given"] = np.where(known.known, known.targets, np.nan)[rows]
    else:
        if known.is_binary:
            first = _wanted(known, wanted)
            places += first
            if tested.any():
                found["ranking"] = rank(
                    _reweighted(held[tested], factor)[:, first],
                    truth[tested, first],
                    known.classes[first],
                    weight=None if weight is None else weight[tested],
                    precision=precision,
                    cost=cost,
                )
            if isinstance(nodes, str):
                order = np.argsort(-answers[:, first], kind="stable")
                rows, answers = rows[order], answers[order]
        if not found.get("ranking"):
            places = answers.argmax(axis=1)
        assert isinstance(learned.probe, CalibratedProbe)
        found |= {
            "classes": known.classes,
            "probabilities": answers.astype(np.float32),
            "several": known.several,
            "known": np.where(known.known[rows, None], known.targets[rows], -1),
            "labelled": tuple(known.targets.sum(axis=0).tolist()),
            "strength": learned.probe.strength,
            "temperature": learned.probe.temperature,
        }
    if why:
        told_why = explain(learned, rows, places, graph=graph, ids=ids, rests=rival is None)
        found["reasons"] = tuple(told_why)
    return (Estimates if known.number else Predictions)(rows=rows, ids=ids[rows], **found)


def _told(held: Array) -> Array:
    """Returns which of the labelled nodes were held out once."""
    return np.asarray(~np.isnan(held.reshape(len(held), -1)).any(axis=1))


def _wanted(known: KnownLabels, name: Any) -> int:
    """Returns the number of the class that is looked for; not named, the rarer one."""
    if name is not None:
        return [str(one) for one in known.classes].index(str(name))
    return int(np.subtract(*known.targets.sum(axis=0)) >= 0)


def _check_nodes(nodes: Any) -> None:
    known = not isinstance(nodes, str) or nodes in NODES
    require(known, "predict", "nodes", f"{' or '.join(NODES)}, or a list of ids", nodes)


def _rivals(known: KnownLabels, graph: Any, ids: Any, seed: int) -> list[Rival]:
    """Returns the plain rivals; none without columns."""
    x: Any = getattr(graph, "x", None)
    if not is_table(x):
        return []
    labelled = np.flatnonzero(known.known)
    means = neighbour_means(graph)
    near = None if means is None else means[labelled] @ x
    return plain_rivals(
        x[labelled], near, known.targets[labelled], kind=known.kind, seed=seed, names=ids[labelled]
    )


def _by_rival(rival: Rival, graph: Any, rows: Array) -> Array:
    """Returns what a rival says of nodes; of a number, it knows no interval."""
    means = neighbour_means(graph) if rival.neighbours else None
    found = rival.predict(graph.x[rows], None if means is None else means[rows] @ graph.x)
    return found if found.ndim == 2 else np.stack([found] * 3, axis=1)


def _share_factors(known: KnownLabels, shares: Mapping[Any, float] | None) -> Array | None:
    """Returns how many times as frequent each class is among all nodes as among labelled ones."""
    if shares is None:
        return None
    given = {str(name): float(share) for name, share in shares.items()}
    names = [str(name) for name in known.classes]
    exclusive = known.kind == "classes"
    right = exclusive and set(given) == set(names) and min(given.values()) > 0
    classes = f"a positive share for each of {', '.join(names[:10])}"
    classes = classes if exclusive else "left out: there are no classes that exclude each other"
    require(right, "predict", option("shares"), classes, dict(shares))
    there = known.targets.sum(axis=0) / known.known.sum()
    return np.asarray(np.array([given[name] for name in names]) / sum(given.values()) / there)


def _reweighted(probability: Array, factor: Array | None) -> Array:
    """Returns probabilities for other shares of the classes."""
    if factor is None:
        return probability
    scaled = probability * factor
    return np.asarray(scaled / scaled.sum(axis=1, keepdims=True))
