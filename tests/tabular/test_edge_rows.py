"""New nodes whose edges have columns: embedded as in the grown graph, in Python and served."""

import datetime

import numpy as np
import pandas
import pytest

import graphcl
from graphcl.errors import GraphError
from graphcl.estimator.model import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.serving.run import ServedRun
from tests.serving.conftest import client_of

PEOPLE, GOODS, ORDERS = 40, 15, 120
OPTIONS = {"text": "buys=note", "missing": "mean"}


def tables():
    random = np.random.default_rng(0)
    people = {"id": [f"c{n}" for n in range(PEOPLE)], "age": random.integers(18, 80, PEOPLE)}
    goods = {"id": [f"p{n}" for n in range(GOODS)], "price": random.random(GOODS)}
    day = pandas.Timestamp("2026-01-01")
    buys = {
        "person": random.choice(people["id"], ORDERS),
        "good": random.choice(goods["id"], ORDERS),
        "amount": np.round(random.random(ORDERS) * 90, 2),
        "paid": random.choice(["card", "cash"], ORDERS),
        "day": [str((day + pandas.Timedelta(days=int(n))).date()) for n in range(ORDERS)],
        "note": [f"word{n % 7} and {n % 5} things" for n in range(ORDERS)],
    }
    friends = {"a": random.choice(people["id"], 60), "b": random.choice(people["id"], 60)}
    return [pandas.DataFrame(one) for one in (people, goods, buys, friends)]


def graph_of(people, goods, buys, friends, **options):
    friends = friends[friends["a"] != friends["b"]]
    edges = {"person:buys:good": buys, "person:knows:person": friends}
    return graphcl.read_tables(edges, {"person": people, "good": goods}, **options)


NEW = [
    {"amount": 12.5, "paid": "cash", "day": "2026-02-03", "note": "word3 and 2 things"},
    {"amount": None, "paid": "card", "day": datetime.date(2026, 5, 1), "note": None},
    {"amount": 70, "paid": "gift", "day": None, "note": "word1"},
]
NEAR = ["buys/p3", "buys/p3", "buys/p9", "knows/c5"]


@pytest.fixture(scope="module")
def shop():
    graph = graph_of(*tables(), **OPTIONS)
    model = GraphCL(dim=24, epochs=1, device="cpu").fit(graph)
    return model, graph


@pytest.fixture(scope="module")
def grown(shop):
    """The embedding that the new person has in the graph of all tables, with their edges."""
    model, graph = shop
    people, goods, buys, friends = tables()
    people.loc[len(people)] = ["new", 44]
    for good, one in zip(("p3", "p3", "p9"), NEW, strict=True):
        day = None if one["day"] is None else str(one["day"])
        buys.loc[len(buys)] = ["new", good, one["amount"], one["paid"], day, one["note"]]
    friends.loc[len(friends)] = ["new", "c5"]
    prepared = {
        "preparations": {name: one.preparation for name, one in graph.nodes.items()},
        "edge_preparations": {
            ":".join(key): one.preparation
            for key, one in graph.relations.items()
            if one.preparation is not None
        },
    }
    whole = graph_of(people, goods, buys, friends, **prepared)
    return model.transform(whole, nodes=["new"], node_type="person")[0]


def test_a_new_node_has_the_bits_of_the_grown_graph(shop, grown):
    model, graph = shop
    x = np.array([44], np.float32)
    how = {"graph": graph, "node_type": "person"}
    found = model.embed_new(x, NEAR, edge_columns=[*NEW, None], **how)
    np.testing.assert_allclose(found, grown, atol=1e-6 * np.abs(grown).max())
    several = model.embed_new([x, x], [NEAR, []], edge_columns=[[*NEW, None], None], **how)
    np.testing.assert_array_equal(several[0], found)


def test_what_an_edge_says_changes_the_embedding(shop):
    model, graph = shop
    how = {"graph": graph, "node_type": "person"}
    x = np.array([44], np.float32)
    found = [model.embed_new(x, ["buys/p3"], edge_columns=[one], **how) for one in NEW]
    for first in range(3):
        for second in range(first):
            assert np.abs(found[first] - found[second]).max() > 1e-4


@pytest.mark.parametrize(
    ("near", "columns", "message"),
    [
        (["buys/p3"], None, "node 0, edge buys/p3: edges of buys have columns; give a value for"),
        (["buys/p3"], [{}], "edge buys/p3: has no column 'amount'"),
        (["buys/p3"], [NEW[0] | {"amuont": 3}], "unknown column 'amuont'"),
        (["buys/p3"], [NEW[0] | {"amount": "much"}], "column 'amount': 'much' is not a number"),
        (["buys/p3"], [NEW[0] | {"amount": 1e300}], "outside the range of float32"),
        (["buys/p3"], [NEW[0] | {"day": "soon"}], "'soon' is not a date"),
        (["buys/p3"], [[1.0, 2.0]], "edges of buys have columns"),
        (["buys/p3"], NEW[:2], "has 1 neighbours and columns of 2 edges"),
        (["knows/c5"], [{"amount": 3}], "edges of knows have no columns; leave them out"),
    ],
)
def test_columns_that_do_not_fit_are_refused(shop, near, columns, message):
    model, graph = shop
    x = np.array([44], np.float32)
    with pytest.raises(GraphError, match=message):
        model.embed_new(x, near, edge_columns=columns, graph=graph, node_type="person")


def test_features_that_no_table_made_are_given_as_such():
    random = np.random.default_rng(0)
    nodes = {"a": {"x": random.normal(size=(8, 3))}, "b": {"num_nodes": 5}}
    ends, features = [[0, 1, 2, 3], [0, 1, 2, 4]], random.normal(size=(4, 2))
    key = ("a", "to", "b")
    graph = Graph.from_edges(nodes, {key: {"edge_index": ends, "edge_features": features}})
    model = GraphCL(dim=8, epochs=1, device="cpu").fit(graph)
    x = random.normal(size=3).astype(np.float32)
    how = {"graph": graph, "node_type": "a"}
    found = model.embed_new(x, ["2"], edge_columns=[[0.5, -1]], **how)
    nodes["a"]["x"] = np.concatenate([graph.nodes["a"].x, x[None]])
    ends, features = [[*ends[0], 8], [*ends[1], 2]], np.concatenate([features, [[0.5, -1]]])
    whole = Graph.from_edges(nodes, {key: {"edge_index": ends, "edge_features": features}})
    np.testing.assert_array_equal(found, model.transform(whole, node_type="a")[8])
    for wrong in ([0.5], [0.5, np.nan], {"x": 1}, "ab", [[1, 2]]):
        with pytest.raises(GraphError, match=r"give 2 numbers|not finite"):
            model.embed_new(x, ["2"], edge_columns=[wrong], **how)


def test_ages_of_edges_beside_columns():
    """A time says how old an edge is; without one it is of this moment."""
    people, goods, buys, friends = tables()
    graph = graph_of(people, goods, buys, friends, time="day")
    model = GraphCL(dim=16, epochs=1, device="cpu").fit(graph)
    x = np.array([44], np.float32)
    how = {"graph": graph, "node_type": "person"}
    made = {key: NEW[0][key] for key in ("amount", "paid", "note")}
    names = [one.name for one in graph.relation("buys").preparation.columns]
    made = {key: value for key, value in made.items() if key in names}
    now = model.embed_new(x, ["buys/p3"], edge_columns=[made], **how)
    last = model.embed_new(x, ["buys/p3"], edge_columns=[made | {"day": "2026-04-30"}], **how)
    old = model.embed_new(x, ["buys/p3"], edge_columns=[made | {"day": "2025-01-01"}], **how)
    assert np.abs(now - old).max() > 1e-4
    assert np.abs(now - last).max() < np.abs(now - old).max()
    with pytest.raises(GraphError, match="edge buys/p3, column 'day': 'soon' is not a date"):
        model.embed_new(x, ["buys/p3"], edge_columns=[made | {"day": "soon"}], **how)


def test_the_service_takes_columns_of_edges(shop, grown, tmp_path):
    model, graph = shop
    model.save(tmp_path / "run", graph=graph)
    client = client_of(ServedRun(tmp_path / "run", graph, node_type="person"))
    edges = [one | {"day": one["day"] and str(one["day"])} for one in NEW]
    new = {"columns": {"age": 44}, "neighbors": NEAR, "edges": [*edges, None]}
    answer = client.post("/v1/embed", {"new": [new]})
    assert answer.status_code == 200, answer.text
    found = np.array(answer.json()["nodes"][0]["embedding"], np.float32)
    np.testing.assert_allclose(found, grown, atol=1e-6 * np.abs(grown).max())
    lacks = client.post("/v1/embed", {"new": [new | {"edges": [{}, *edges[1:], None]}]})
    assert lacks.status_code == 400
    assert "node 0, edge buys/p3: has no column 'amount'" in lacks.json()["error"]
    about = client.get("/openapi.json").json()
    described = about["components"]["schemas"]["NewNode"]["properties"]["edges"]
    assert "'amount'" in str(described)
    example = about["paths"]["/v1/embed"]["post"]["requestBody"]["content"]["application/json"]
    shown = example["examples"]["new"]["value"]
    assert set(shown["new"][0]["edges"][0]) == {"amount", "paid", "day", "note"}
    assert client.post("/v1/embed", shown).status_code == 200
