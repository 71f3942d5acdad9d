"""What scikit-learn expects of an estimator, as far as it can hold where X is a graph."""

import pickle
import re

import networkx
import numpy as np
import pandas
import polars
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_array, check_is_fitted
from torch_geometric.data import Data

import graphcl
from graphcl import probe_scorer
from graphcl.errors import GraphError, ParameterError
from graphcl.estimator.model import GraphCL, NotFittedError
from graphcl.graphs.graph import Graph
from tests.conftest import random_collection, random_graph
from tests.store.test_partition import typed_graph

# check_estimator hands out tables. OnTables makes a graph of one, a chain of its rows, so that
# nearly all of scikit-learn's checks can be put to GraphCL. What cannot hold, and why:
CANNOT_HOLD = {
    "check_n_features_in_after_fitting": "it wants the words 'X has … features'; our message names "
    "the graph and is tested in test_estimator.py",
    "check_methods_sample_order_invariance": "rows are no independent samples: a node's embedding "
    "depends on its neighbours, and a chain in another order is another graph",
    "check_methods_subset_invariance": "likewise: half of a graph is another graph",
}


class OnTables(GraphCL):
    def fit(self, X, y=None):
        return super().fit(self._chain(X))

    def transform(self, X):
        self._require_fitted("transform")
        return super().transform(self._chain(X))

    def fit_transform(self, X, y=None):
        return self.fit(X).transform(X)

    def _chain(self, X):
        X = check_array(X, dtype=np.float32)
        return Graph.from_edge_index([np.arange(len(X) - 1), np.arange(1, len(X))], X)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.no_validation = True, False
        return tags


def test_scikit_learns_checks_hold_but_for_those_listed():
    tried = check_estimator(
        OnTables(epochs=1, dim=4, layers=1, device="cpu"), on_fail=None, on_skip=None
    )
    failed = {row["check_name"] for row in tried if row["status"] == "failed"}
    assert failed == set(CANNOT_HOLD)
    assert sum(row["status"] == "passed" for row in tried) > 35


def test_graphcl_itself_says_that_x_is_no_table():
    with pytest.warns(UserWarning, match="Can't test estimator GraphCL"):
        tried = check_estimator(GraphCL(epochs=1), on_skip=None)
    assert {row["status"] for row in tried} == {"passed"}


def test_clone_pickle_and_fitted_state(graph, recipe):
    model = GraphCL(recipe, device="cpu", dim=4).fit(graph)
    bare = clone(model)
    with pytest.raises(sklearn.exceptions.NotFittedError, match="call fit before transform"):
        bare.transform(graph)
    with pytest.raises(NotFittedError):
        bare.get_feature_names_out()
    with pytest.raises(sklearn.exceptions.NotFittedError):
        check_is_fitted(bare)
    check_is_fitted(model)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.transform(graph), model.transform(graph))
    assert model.n_features_in_ == graph.num_features


def test_a_pipeline_goes_from_graph_to_classes(graph, recipe):
    steps = [("embed", GraphCL(recipe, device="cpu")), ("classify", LogisticRegression())]
    pipeline = Pipeline(steps).fit(graph, graph.y)
    assert pipeline.predict(graph).shape == (graph.num_nodes,)
    assert pipeline.score(graph, graph.y) > 0.5
    assert clone(pipeline).set_params(embed__dim=4)["embed"].dim == 4
    assert list(pipeline[:-1].get_feature_names_out())[:2] == ["graphcl0", "graphcl1"]


@pytest.mark.parametrize("make", [random_graph, random_collection, typed_graph])
def test_a_search_over_one_graph_says_what_to_do(make, recipe):
    graph, model = make(), GraphCL(recipe, device="cpu", epochs=1, dim=4)
    grid: dict[str, object] = {"param_grid": {"temperature": [0.5]}, "scoring": probe_scorer}
    message = rf"{graph.name}: a graph is not an array of rows.* fit\(\[graph\]\), cv=\[\(\[0\]"
    for refused in (
        lambda: GridSearchCV(model, **grid).fit(graph),
        lambda: cross_val_score(model, graph, scoring=probe_scorer),
    ):
        with pytest.raises(GraphError, match=message):
            refused()


def test_what_the_search_is_told_to_do_works(graph, recipe):
    search = GridSearchCV(
        GraphCL(recipe, device="cpu", epochs=1, dim=4),
        {"temperature": [0.5, 1.0]},
        scoring=probe_scorer,
        cv=[([0], [0])],
        refit=True,
    ).fit([graph])
    assert search.best_params_["temperature"] in (0.5, 1.0)


def test_a_search_reaches_keys_of_the_recipe_that_are_no_keywords(graph, recipe):
    tried = [recipe.replace(weight_decay=0.0), recipe.replace(weight_decay=0.1)]
    search = GridSearchCV(
        GraphCL(device="cpu", epochs=1, dim=4),
        {"recipe": tried, "random_state": [3]},
        scoring=probe_scorer,
        cv=[([0], [0])],
        error_score="raise",
    ).fit([graph])
    found = search.best_estimator_
    assert (found.recipe, found.seed) == (search.best_params_["recipe"], 3)
    assert found.recipe_ == found.recipe.replace(epochs=1, dim=4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"random_state": 4}, "GraphCL: it is called seed; write GraphCL(seed=4)"),
        ({"fan_out": 5}, "fan_out is a key of the recipe; write GraphCL(Recipe(fan_out=5))"),
        ({"epoch": 5}, "GraphCL: unknown keyword 'epoch'; did you mean 'epochs'?"),
        ({"qqqq": 5}, "GraphCL: unknown keyword 'qqqq'; known: recipe, encoder, layers"),
    ],
)
def test_another_keyword_is_answered_with_the_right_one(given, message):
    with pytest.raises(ParameterError, match=re.escape(message)):
        GraphCL(**given)


def test_the_seed_is_scikit_learns_random_state():
    model = Pipeline([("embed", GraphCL())]).set_params(embed__random_state=7)["embed"]
    assert clone(model).seed == 7
    assert "random_state" not in model.get_params()


def test_output_as_tables(graph, recipe):
    named = Graph.from_edge_index(
        graph.edge_index(), graph.x, node_ids=[f"node {n}" for n in range(60)]
    )
    model = GraphCL(recipe, device="cpu").set_output(transform="pandas")
    frame = model.fit_transform(named)
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.index[:2]) == ["node 0", "node 1"]
    assert list(frame.columns) == list(model.get_feature_names_out())
    assert [type(one) for one in model.transform([named, named])] == [pandas.DataFrame] * 2
    model.set_output(transform="polars")
    assert isinstance(model.transform(named), polars.DataFrame)
    plain = model.set_output(transform="default").transform(named)
    assert np.array_equal(plain, frame.to_numpy())
    with sklearn.config_context(transform_output="pandas"):
        assert isinstance(
            GraphCL(recipe, device="cpu").fit(named).transform(named), pandas.DataFrame
        )
    with pytest.raises(ParameterError, match="set_output: transform must be default"):
        model.set_output(transform="arrow")


def test_networkx_to_embedding_in_two_lines():
    graph = networkx.karate_club_graph()
    model = graphcl.GraphCL(epochs=1, dim=8, device="cpu")
    with pytest.raises(GraphError, match=r"no node has the attribute 'x'.*'structural'"):
        model.fit(graph)
    networkx.set_node_attributes(graph, dict(graph.degree), "x")
    z = model.fit_transform(graph)
    assert np.array_equal(model.transform(graph, nodes=[33]), z[33:])
    with pytest.raises(GraphError, match=r"HeteroData, or a networkx graph; got ndarray; see"):
        model.fit(z)


def test_pyg_to_embedding_in_two_lines():
    data = Data(x=torch.rand(30, 5), edge_index=torch.randint(0, 30, (2, 80)))
    model = graphcl.GraphCL(epochs=1, dim=8, device="cpu")
    z = model.fit_transform(data)
    assert z.shape == (30, 8)


@pytest.mark.parametrize("encoder", ["mean", "residual", "gcn"])
def test_some_nodes_by_id_or_row_are_rows_of_all(encoder):
    graph = random_graph(num_nodes=80)
    named = graph.replace(node_ids=np.arange(80)[::-1] + 1000)  # row 0 has the id 1079
    model = GraphCL(encoder=encoder, dim=8, epochs=1, device="cpu").fit(named)
    whole = model.transform(named)
    mask = np.zeros(80, bool)
    mask[[5, 7]] = True
    for given, rows in (
        ({"nodes": np.array([1009, 1076, 1076])}, [70, 3, 3]),
        ({"nodes": ["1009", 1076]}, [70, 3]),
        ({"nodes": 1076}, [3]),
        ({"nodes": "1076"}, [3]),
        ({"rows": np.array([70, 3, 3])}, [70, 3, 3]),
        ({"rows": 3}, [3]),
        ({"rows": mask}, [5, 7]),
        ({"rows": slice(2, 9)}, list(range(2, 9))),
    ):
        np.testing.assert_allclose(model.transform(named, **given), whole[rows], atol=1e-6)
    np.testing.assert_allclose(model.transform(graph, nodes=[70, 3]), whole[[70, 3]], atol=1e-6)
    table = model.set_output(transform="pandas").transform(named, nodes=["1009", "1076"])
    assert table.index.tolist() == [1009, 1076]
    model.set_output(transform="default")
    for wrong, message in (
        ({"nodes": [3]}, "no node has the id '3'"),
        ({"nodes": [1080]}, "no node has the id '1080'; did you mean"),
        ({"nodes": mask}, "nodes are ids; give a mask or a range as rows="),
        ({"nodes": slice(2)}, "nodes are ids; give a mask or a range as rows="),
        ({"nodes": [1079], "rows": [0]}, "give one of them"),
        ({"rows": [80]}, "no row 80 among 80 nodes"),
        ({"rows": [-1]}, "no row -1"),
        ({"rows": ["1079"]}, "rows must be row numbers, a mask or a range"),
        ({"rows": [1.0]}, "rows must be row numbers, a mask or a range"),
        ({"rows": np.ones(3, bool)}, "a mask of 3 for 80 nodes"),
        ({"rows": np.zeros(80, bool)}, "no node is chosen"),
        ({"nodes": []}, "no node is chosen"),
    ):
        with pytest.raises(GraphError, match=message):
            model.transform(named, **wrong)
