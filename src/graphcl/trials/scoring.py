"""Scores of embeddings and trained systems, for scikit-learn's searches and for rows."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from graphcl.baselines.protocol import Data
from graphcl.estimator import GraphCL
from graphcl.evaluation import linear_probe
from graphcl.evaluation.criteria import nodes_to_choose_by, validation_score
from graphcl.evaluation.multilabel import STEPS
from graphcl.graphs.collection import GraphCollection, Labelled, as_graphs
from graphcl.trials.methods import Trained, score_method
from graphcl.trials.rows import Json, Row
from graphcl.trials.runner import Scoring


def probe_scorer(model: GraphCL, graphs: Any, y: None = None) -> float:  # noqa: ARG001
    """Returns the score by which `graphcl tune` ranks, mean over `graphs`; higher is better.

    It is the probe's score on validation nodes: see `graphcl.evaluation.splits.metric_of`.

    Test nodes are not used: a search that chose by them would leave no fair score to report. For
    `GridSearchCV`, X is a list of graphs, and each fold holds some of them out::

        GridSearchCV(GraphCL(), {"temperature": [0.5, 0.8]}, scoring=probe_scorer, cv=3).fit(graphs)

    To search with one graph, use a fold that trains and scores on it: ``fit([graph])`` with
    ``cv=[([0], [0])]``. Only the score reads its labels.

    Args:
        model: a fitted estimator.
        graphs: a labelled graph or several, which the model may have been trained on.
        y: ignored; labels belong to the graphs.
    """
    given = as_graphs(graphs)
    each = given.graphs if isinstance(given, GraphCollection) else (given,)
    scores = []
    for graph in each:
        nodes, labels, train = nodes_to_choose_by(graph)
        scores.append(validation_score(model.transform(graph)[nodes], labels, train))
    return sum(scores) / len(scores)


def settings_hash(settings: Mapping[str, Json]) -> str:
    """Returns twelve hexadecimal digits that identify a system's settings in rows."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def method_scoring(
    row: Row, trained: Trained, data: Data, *, device: torch.device, probe_steps: int = STEPS
) -> Scoring:
    """Returns `row`, which has the columns of `trained`, with the function that scores it.

    With several labels per node the probe is trained here, on the device.
    """
    if trained.trial.failed is not None:
        return Scoring((row,))
    if is_multilabel(data):
        scored = score_method(trained, data, probe_steps=probe_steps, device=device)
        return Scoring((row | scored.to_json(),))
    return Scoring((row,), partial(_method_rows, trained, labels_only(data)))


def _method_rows(trained: Trained, data: Labelled) -> list[Row]:
    return [score_method(trained, data, device="cpu").to_json()]


def probe_scoring(
    row: Row, z: Any, data: Data, *, device: torch.device, probe_steps: int = STEPS
) -> Scoring:
    """Returns `row` with the function that computes the probe's scores of the embeddings `z`."""
    if is_multilabel(data):
        found: Row = asdict(linear_probe(z, data, steps=probe_steps, device=str(device)))
        return Scoring((row | found,))
    return Scoring((row,), partial(_probe_rows, z, labels_only(data)))


def _probe_rows(z: Any, data: Labelled) -> list[Row]:
    return [asdict(linear_probe(z, data, device="cpu"))]


def is_multilabel(data: Data) -> bool:
    """Whether nodes have several labels."""
    return data.y is not None and data.y.ndim == 2


def labels_only(data: Data) -> Labelled:
    """Returns the graph without edges and features, which the probe does not need."""
    if isinstance(data, GraphCollection):
        return data
    return data.only_type
