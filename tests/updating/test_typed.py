"""Updates of graphs with types, against the same tables read whole."""

import json

import numpy as np
import pandas
import pytest

from graphcl import Graph, GraphCL, Run, read_tables
from graphcl.cli.main import run
from graphcl.errors import GraphCLError
from graphcl.runs import files as runs
from graphcl.runs.nodes import read_nodes, type_folder
from graphcl.runs.versions import current_run


def tables(seed=0):
    random = np.random.default_rng(seed)
    people = pandas.DataFrame(
        {
            "id": [f"c{n}" for n in range(40)],
            "age": random.integers(18, 80, 40),
            "town": random.choice(["Bern", "Genf", "Chur"], 40),
        }
    )
    goods = pandas.DataFrame(
        {
            "id": np.arange(25),
            "price": np.round(random.random(25) * 90, 2),
            "kind": random.choice(["book", "toy"], 25),
        }
    )
    buys = pandas.DataFrame(
        {
            "customer": random.choice(people["id"], 120),
            "product": random.choice(goods["id"], 120),
            "stars": random.integers(1, 6, 120),
        }
    ).drop_duplicates(["customer", "product"])
    return people, goods, buys


OPTIONS = {"label": ("product=kind",)}


def graph_of(people, goods, buys, **more):
    return read_tables(
        {"customer:buys:product": buys}, {"customer": people, "product": goods}, **OPTIONS, **more
    )


@pytest.fixture
def trained(tmp_path):
    """A run of all tables but for their last rows."""
    people, goods, buys = tables()
    early = buys[buys["customer"].isin(people["id"][:35]) & buys["product"].isin(goods["id"][:22])]
    early = early[:-4]
    graph = graph_of(people[:35], goods[:22], early)
    model = GraphCL(dim=24, epochs=2, device="cpu").fit(graph)
    model.save(tmp_path / "run", graph=graph)
    return tmp_path / "run", graph, (people, goods, buys, early)


def as_trained(graph, whole):
    """The features of all tables, prepared by the statistics of the first."""
    people, goods, buys = whole
    preparations = {name: one.preparation for name, one in graph.nodes.items()}
    edges = {":".join(key): one.preparation for key, one in graph.relations.items()}
    return graph_of(people, goods, buys, preparations=preparations, edge_preparations=edges)


def test_new_rows_give_the_graph_of_all_tables(trained):
    path, graph, (people, goods, buys, early) = trained
    later = buys.drop(early.index)
    done = Run(path, graph=graph, device="cpu").update(
        nodes={"customer": people[35:], "product": goods[22:]}, edges={"buys": later}
    )
    assert done.about["changes"] == {
        "new_nodes": 8,
        "removed_nodes": 0,
        "changed_nodes": 0,
        "edges_before": graph.num_edges,
        "edges_after": len(buys),
    }
    model = GraphCL.load(path, device="cpu")
    expected = model.transform(as_trained(graph, (people, goods, buys)))
    for name, rows in expected.items():
        found = runs.read_embeddings(type_folder(current_run(path), name))
        np.testing.assert_allclose(found, rows, atol=1e-6)
    # The next update needs no graph: the version has its own.
    again = Run(path, device="cpu").update(remove_nodes={"customer": ["c3"]})
    assert again.about["types"] == {"customer": 39, "product": 25}
    assert Run(path).rollback() == 1


def test_changed_nodes_and_removed_edges(trained):
    path, graph, (people, goods, _, early) = trained
    dearer = goods[:22].assign(price=goods["price"][:22] + np.r_[5.0, np.zeros(21)])
    gone = early[:3][["customer", "product"]]
    done = Run(path, graph=graph, device="cpu").update(
        nodes={"product": dearer}, remove_edges={"buys": gone}
    )
    assert done.about["changes"]["changed_nodes"] == 1
    assert done.about["edges"] == graph.num_edges - 3
    model = GraphCL.load(path, device="cpu")
    whole = as_trained(graph, (people[:35], dearer, early[3:]))
    for name, rows in model.transform(whole).items():
        found = runs.read_embeddings(type_folder(current_run(path), name))
        np.testing.assert_allclose(found, rows, atol=1e-6)


def test_new_nodes_need_no_label_and_known_ones_keep_theirs(trained):
    path, graph, (_, goods, _, _) = trained
    table = pandas.concat([goods[:1], goods[22:]])[["id", "price"]]
    Run(path, graph=graph, device="cpu").update(nodes={"product": table})
    kept = read_nodes(current_run(path), "product")
    assert kept.y[:22].tolist() == graph.nodes["product"].y.tolist()
    assert kept.y[22:].tolist() == [-1, -1, -1]


def test_ids_stay_with_their_nodes(trained):
    """Products are numbered 0, 1, …, as rows are: after a change they are not the rows any more."""
    path, graph, _ = trained
    table = pandas.DataFrame({"id": [200, 31], "price": [3.0, 4.0]})
    gone = {"product": [3], "customer": ["c0"]}
    Run(path, graph=graph, device="cpu").update(nodes={"product": table}, remove_nodes=gone)
    kept = read_nodes(current_run(path), "product").ids
    assert kept.tolist() == [*(number for number in range(22) if number != 3), 200, 31]
    people = read_nodes(current_run(path), "customer").ids
    assert people.tolist() == [f"c{number}" for number in range(1, 35)]
    Run(path, device="cpu").update(remove_nodes={"product": [200]})
    kept = read_nodes(current_run(path), "product").ids
    assert kept.tolist() == [*(number for number in range(22) if number != 3), 31]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": pandas.DataFrame({"id": ["c99"]})}, "of which of customer, product"),
        ({"nodes": {"shop": pandas.DataFrame({"id": [1]})}}, "no type 'shop'"),
        (
            {
                "edges": {
                    "buys": pandas.DataFrame(
                        {"customer": ["c99", "c1", "c2"], "product": [1, 2, 3], "stars": [2, 2, 4]}
                    )
                }
            },
            "1 id is not in the graph, first 'c99'",
        ),
        ({"remove_nodes": {"product": [77]}}, "1 id is not in the graph, first '77'"),
        (
            {"remove_edges": {"buys": pandas.DataFrame({"customer": ["c1"], "product": [21]})}},
            "remove_edges buys: 1 edge is not in the graph, first 'c1' – '21'",
        ),
    ],
)
def test_what_does_not_fit_changes_nothing(trained, change, message):
    path, graph, (*_, early) = trained
    both = early["customer"].eq("c1") & early["product"].eq(21)
    assert not both.any()
    with pytest.raises(GraphCLError, match=message):
        Run(path, graph=graph, device="cpu").update(**change)
    assert current_run(path) == path


def test_the_command_line(trained, monkeypatch, capsys):
    path, _, (people, goods, buys, early) = trained
    monkeypatch.chdir(path.parent)
    people[:35].to_csv("people.csv", index=False)
    goods[:22].to_csv("goods.csv", index=False)
    early.to_csv("buys.csv", index=False)
    lists = ["--nodes", "customer=people.csv", "--nodes", "product=goods.csv"]
    lists += ["--edges", "customer:buys:product=buys.csv", "--label", "product=kind"]
    quick = ["--set", "epochs=1", "--set", "dim=16", "--device", "cpu"]
    assert run(["train", *lists, "--out", "shop", *quick]) == 0
    people[35:].to_csv("more.csv", index=False)
    later = buys.drop(early.index)
    later[later["product"] < 22].to_csv("later.csv", index=False)
    capsys.readouterr()
    assert (
        run(
            [
                "update",
                "shop",
                "--nodes",
                "customer=more.csv",
                "--edges",
                "buys=later.csv",
                "--json",
            ]
        )
        == 0
    )
    about = json.loads(capsys.readouterr().out)
    assert about["changes"]["new_nodes"] == 5
    assert run(["evaluate", "shop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] is not None
    assert run(["neighbors", "shop", "c38", "--type", "customer", "--json"]) == 0
    assert run(["update", "shop", "--nodes", "more.csv"]) == 2
    assert run(["update", "shop", "--rollback"]) == 0


def test_updates_after_updates_give_the_graph_of_all_tables(trained):
    """How columns became features is known in every version, not in the training alone."""
    path, graph, (people, goods, buys, early) = trained
    later = buys.drop(early.index)
    Run(path, graph=graph, device="cpu").update(nodes={"customer": people[35:38]})
    Run(path, device="cpu").update(nodes={"customer": people[38:], "product": goods[22:24]})
    Run(path, device="cpu").update(nodes={"product": goods[24:]}, edges={"buys": later})
    expected = GraphCL.load(path, device="cpu").transform(as_trained(graph, (people, goods, buys)))
    for name, rows in expected.items():
        found = runs.read_embeddings(type_folder(current_run(path), name))
        np.testing.assert_allclose(found, rows, atol=1e-6)


def test_more_training_keeps_the_space(trained):
    path, graph, (people, goods, buys, early) = trained
    before = {name: np.array(runs.read_embeddings(type_folder(path, name))) for name in graph.nodes}
    new = {"customer": people[35:], "product": goods[22:]}
    lists = {"nodes": new, "edges": {"buys": buys.drop(early.index)}}
    done = Run(path, graph=graph, device="cpu").update(**lists, retrain=True, epochs=3)
    assert done.about["retrained"]["aligned"]
    assert done.about["embedded"] == 65
    model = GraphCL.load(path, device="cpu")
    whole = model.transform(as_trained(graph, (people, goods, buys)))
    apart, turned = 0.0, 0.0
    for name, rows in whole.items():
        found = np.array(runs.read_embeddings(type_folder(current_run(path), name)))
        np.testing.assert_allclose(found, rows, atol=1e-5)
        kept = before[name].shape[0]
        apart += float(((found[:kept] - before[name]) ** 2).sum())
        turned += float(((found[:kept][::-1] - before[name]) ** 2).sum())
    assert 0 < apart < 0.5 * turned  # closer to their own old places than to those of others
    again = Run(path, device="cpu").update(remove_nodes={"customer": ["c3"]})
    z = GraphCL.load(path, device="cpu").live(Graph.open(again.path / "graph"), node_type="product")
    assert z.embed_new(np.zeros(graph.nodes["product"].num_features), []).shape == (24,)


def test_columns_are_named_by_relation_where_no_table_of_nodes_is_given(tmp_path, monkeypatch):
    people, goods, _ = tables()
    random, counts = np.random.default_rng(3), {"likes": 60, "owns": 50}
    ends = {"likes": people["id"], "owns": goods["id"]}
    lists = {
        name: pandas.DataFrame(
            {
                "source": random.choice(people["id"], count),
                "target": random.choice(ends[name], count),
                name[0]: random.integers(1, 9, count) / 2,
            }
        ).drop_duplicates(["source", "target"])
        for name, count in counts.items()
    }
    weight = {"likes": "l", "owns": "o"}
    early = {"customer:likes:customer": lists["likes"][:40], "customer:owns:product": lists["owns"]}
    both = {"customer": people, "product": goods}
    graph = read_tables(early, both, weight=weight, **OPTIONS)
    model = GraphCL(dim=16, epochs=1, device="cpu").fit(graph)
    model.save(tmp_path / "run", graph=graph)
    later = {"likes": lists["likes"][40:], "owns": lists["owns"][:2].assign(o=9.0)}
    done = Run(tmp_path / "run", graph=graph, device="cpu").update(edges=later, weight=weight)
    owns = Graph.open(done.path / "graph").relations["customer", "owns", "product"]
    assert (owns.edge_weight == 9).sum() == 2
    with pytest.raises(GraphCLError, match="edges have edge_weight"):
        Run(tmp_path / "run", device="cpu").update(
            edges={"likes": lists["likes"][:1].drop(columns="l")}
        )
    monkeypatch.chdir(tmp_path)
    for name, table in later.items():
        table.to_csv(f"{name}.csv", index=False)
    words = ["--edges", "likes=likes.csv", "--edges", "owns=owns.csv", "--device", "cpu"]
    assert run(["update", "run", *words, "--weight", "likes=l", "--weight", "owns=o"]) == 0


def test_what_goes_may_not_come(trained):
    path, graph, (*_, buys, early) = trained
    later = buys.drop(early.index)
    later = later[
        later["customer"].isin(early["customer"]) & later["product"].isin(early["product"])
    ]
    gone = next(one for one in early["customer"] if one not in set(later["customer"]))
    run, lists = Run(path, graph=graph, device="cpu"), {"edges": {"buys": later}}
    with pytest.raises(GraphCLError, match="is to be removed, and is named in the new edges"):
        run.update(remove_nodes={"customer": [later["customer"].iloc[0]]}, **lists)
    done = run.update(remove_nodes={"customer": [gone]}, **lists)
    assert done.about["changes"]["removed_nodes"] == 1


def test_columns_that_are_absent_keep_their_values(trained):
    path, graph, (_, goods, _, _) = trained
    cheaper = pandas.DataFrame({"id": [3], "price": [goods["price"][3] / 2]})
    done = Run(path, graph=graph, device="cpu").update(nodes={"product": cheaper})
    assert done.about["changes"]["changed_nodes"] == 1
    people = pandas.DataFrame({"id": ["c4"], "town": ["Chur"]})
    Run(path, device="cpu").update(nodes={"customer": people})
    with pytest.raises(GraphCLError, match=r"no column 'age'.*'c99' is new"):
        Run(path, device="cpu").update(nodes={"customer": people.assign(id="c99")})


def test_rows_that_nothing_reaches_keep_their_bits(tmp_path):
    """Two halves without an edge between them: a change in one leaves the other as it is."""
    ids = np.arange(60)
    people = pandas.DataFrame({"id": ids, "age": ids % 7 + 1.0})
    goods = pandas.DataFrame({"id": ids})  # without features: they are those of their buyers
    buys = pandas.DataFrame({"who": ids, "what": ids // 2 * 2 + (ids % 2)})
    tables = {"nodes": {"person": people, "good": goods}}
    graph = read_tables({"person:buys:good": buys}, **tables)
    model = GraphCL(dim=16, epochs=1, device="cpu").fit(graph)
    model.save(tmp_path / "run", graph=graph)
    before = {
        name: np.array(runs.read_embeddings(type_folder(tmp_path / "run", name)))
        for name in graph.nodes
    }
    older = pandas.DataFrame({"id": [5], "age": [40.0]})
    done = Run(tmp_path / "run", graph=graph, device="cpu").update(nodes={"person": older})
    assert done.about["embedded"] == 2  # the person, and the good whose features are hers
    for name, rows in before.items():
        found = runs.read_embeddings(type_folder(done.path, name))
        assert np.flatnonzero((found != rows).any(axis=1)).tolist() == [5]


@pytest.mark.parametrize("features", [True, False])
def test_options_of_other_tables_are_no_obstacle(tmp_path, features, monkeypatch, capsys):
    people, goods, buys = tables()
    monkeypatch.chdir(tmp_path)
    people.assign(note="x").to_csv("people.csv", index=False)
    goods.assign(seen="2024-01-02").to_csv("goods.csv", index=False)
    buys.to_csv("buys.csv", index=False)
    likes = pandas.DataFrame({"a": people["id"][:20], "b": people["id"][20:].to_numpy()})
    likes.assign(often=2.5).to_csv("likes.csv", index=False)
    lists = ["--nodes", "customer=people.csv", "--nodes", "product=goods.csv"]
    lists += ["--edges", "customer:buys:product=buys.csv"]
    lists += ["--edges", "customer:likes:customer=likes.csv"]
    lists += ["--label", "kind", "--one-hot", "town", "--weight", "likes=often", "--ignore", "note"]
    lists += ["--date", "seen"] if features else ["--ignore", "seen"]
    quick = ["--set", "epochs=1", "--set", "dim=16", "--device", "cpu", "--quiet"]
    assert run(["train", *lists, "--out", "shop", *quick]) == 0
    pandas.DataFrame({"a": ["c0"], "b": ["c1"], "often": [1.0]}).to_csv("more.csv", index=False)
    pandas.DataFrame({"a": ["c1"], "b": ["c0"]}).to_csv("cut.csv", index=False)
    new = pandas.DataFrame({"id": ["c40"], "age": [33], "town": ["Bern"]})
    new.to_csv("new.csv", index=False)
    capsys.readouterr()
    assert run(["update", "shop", "--nodes", "customer=new.csv"]) == 0
    assert run(["update", "shop", "--edges", "likes=more.csv"]) == 0
    # It is a directed relation: nobody likes back.
    assert run(["update", "shop", "--remove-edges", "likes=cut.csv"]) == 2
    assert "1 edge is not in the graph, first 'c1' – 'c0'" in capsys.readouterr().err
    assert run(["update", "shop", "--remove-edges", "likes=more.csv"]) == 0
