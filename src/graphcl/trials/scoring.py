"""A scorer for scikit-learn's searches: they cross-validate over graphs, not over rows."""

from typing import Any

from graphcl.estimator import GraphCL
from graphcl.evaluation import MultilabelResult, linear_probe
from graphcl.graphs.collection import GraphCollection, as_graphs


def probe_scorer(model: GraphCL, graphs: Any, y: None = None) -> float:  # noqa: ARG001
    """Returns the probe's score on validation nodes, mean over `graphs`; higher is better.

    Test nodes do not enter: a search that chose by them would have nothing left to report. For
    `GridSearchCV`, X is a list of graphs, and folds hold some of them out::

        GridSearchCV(GraphCL(), {"temperature": [0.5, 0.8]}, scoring=probe_scorer, cv=3).fit(graphs)

    One graph is searched over with a fold that trains and scores on it: ``fit([graph])`` with
    ``cv=[([0], [0])]``; its labels are read by the score alone.

    Args:
        model: a fitted estimator.
        graphs: a labelled graph or several, seen or unseen.
        y: ignored; labels belong to the graphs.
    """
    given = as_graphs(graphs)
    each = given.graphs if isinstance(given, GraphCollection) else (given,)
    scores = []
    for graph in each:
        found = linear_probe(model.transform(graph), graph, seed=model.seed, device="cpu")
        if isinstance(found, MultilabelResult):
            scores.append(found.val_micro_f1)
        else:
            scores.append(found.val_accuracy)
    return sum(scores) / len(scores)
