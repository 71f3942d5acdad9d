import numpy as np
from sklearn.model_selection import GridSearchCV

from graphcl import probe_scorer
from graphcl.estimator.model import GraphCL
from graphcl.research.tuning import ValidationScore
from tests.conftest import random_graph


def test_grid_search_holds_graphs_out(recipe):
    graphs = [random_graph(seed) for seed in range(3)]
    search = GridSearchCV(
        GraphCL(recipe, device="cpu"),
        {"dim": [2, 16], "temperature": [0.5]},
        scoring=probe_scorer,
        cv=3,
        error_score="raise",
    ).fit(graphs)
    scores = search.cv_results_["mean_test_score"]
    assert scores.shape == (2,)
    assert search.best_params_["dim"] == (2, 16)[int(scores.argmax())]
    # The first fold of the first setting, by hand.
    model = GraphCL(recipe, device="cpu", dim=2, temperature=0.5).fit(graphs[1:])
    assert search.cv_results_["split0_test_score"][0] == probe_scorer(model, graphs[:1])
    assert [len(rows) for rows in search.transform(graphs)] == [60, 60, 60]


def test_grid_search_over_one_graph(graph, recipe):
    search = GridSearchCV(
        GraphCL(recipe, device="cpu"), {"dim": [4, 8]}, scoring=probe_scorer, cv=[([0], [0])]
    ).fit([graph])
    model = GraphCL(recipe, device="cpu", **search.best_params_)
    score = ValidationScore.of(graph, device="cpu")
    assert search.best_score_ == score(model.fit(graph).transform)


def test_two_classes_are_ranked_as_tune_ranks_them(graph, recipe):
    two = graph.replace(y=np.minimum(graph.y, 1))
    model = GraphCL(recipe, device="cpu").fit(two)
    score = ValidationScore.of(two, device="cpu")
    assert score.name == "validation ROC-AUC"
    assert probe_scorer(model, two) == score(model.transform)


def test_the_scorer_takes_several_labels_per_node(collection, recipe):
    model = GraphCL(recipe, device="cpu").fit(collection)
    assert 0 <= probe_scorer(model, list(collection.test)) <= 1
