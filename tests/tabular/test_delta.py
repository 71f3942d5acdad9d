"""Tables of what changes: read by the training's preparation, ids as they are written."""

from dataclasses import replace

import numpy as np
import pyarrow
import pytest

from graphcl.errors import GraphError
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import EDGE, NODE
from graphcl.tabular import delta
from graphcl.tabular.build import read_tables
from graphcl.tabular.delta import NewEdges, NewNodes, read_ids
from graphcl.tabular.options import TableOptions


def small(width):
    return Graph.from_edge_index([[0], [1]], np.zeros((2, width)))


def read_new(edges, options, *, width):
    """What tables say of a plain graph of so many features: its nodes, its edges, and the notes."""
    nodes = {} if options.nodes is None else {NODE: options.nodes}
    lists = {} if edges is None else {EDGE: edges}
    options = replace(options, nodes=None)
    found = delta.read_new(small(width), options, nodes=nodes, edges=lists)
    nothing = NewEdges(np.zeros((0, 2), np.int64), "")
    own = found.nodes.get(NODE, NewNodes(np.zeros(0)))
    return own, found.edges.get(EDGE, nothing), found.notes


def table(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def prepared(tmp_path):
    edges = table(tmp_path / "edges.csv", "source,target", "a,b", "b,c", "c,d", "d,e")
    nodes = table(
        tmp_path / "nodes.csv",
        "id,age,city,joined",
        "a,20,x,2020-01-01",
        "b,30,y,2020-01-02",
        "c,40,x,2020-01-03",
        "d,,z,2020-01-04",
        "e,30,x,2020-01-05",
    )
    return read_tables(edges, nodes).preparation


def test_nodes_and_edges(prepared, tmp_path):
    nodes = table(tmp_path / "n.csv", "id,city,age,joined", "q,y,25,2020-01-03", "b,new,,")
    edges = table(tmp_path / "e.csv", "source,target", "q,b", "b,q", "q,c", "q,q")
    width = len(prepared.features)
    options = TableOptions(nodes=nodes, preparation=prepared)
    found, listed, notes = read_new(edges, options, width=width)
    assert found.ids.tolist() == ["q", "b", "c"]
    assert found.rows == 2
    assert listed.pairs.tolist() == [[0, 1], [0, 2]]
    assert found.features.tolist() == list(range(width))
    place = {name: k for k, name in enumerate(prepared.features)}
    assert found.x[:, place["age"]].tolist() == [25, 30]  # the training's mean fills the hole
    assert found.x[:, place["city=y"]].tolist() == [1, 0]
    assert found.x[1, [place[f"city={one}"] for one in "xyz"]].tolist() == [0, 0, 0]
    assert not any("added" in note for note in notes)
    assert any("self-loop" in note for note in notes)


def test_columns_that_are_absent(prepared, tmp_path):
    nodes = table(tmp_path / "n.csv", "id,city,other", "q,y,1")
    width = len(prepared.features)
    found, _, _ = read_new(None, TableOptions(nodes=nodes, preparation=prepared), width=width)
    assert found.absent == ("age", "joined")
    assert [prepared.features[k] for k in found.features] == ["city=x", "city=y", "city=z"]
    assert found.x.tolist() == [[0, 1, 0]]
    only = table(tmp_path / "o.csv", "id,other", "q,1")
    found, _, _ = read_new(None, TableOptions(nodes=only, preparation=prepared), width=width)
    assert found.x is None
    assert found.absent == ("age", "city", "joined")
    assert found.ids.tolist() == ["q"]


def test_edges_alone(tmp_path):
    edges = table(tmp_path / "e.csv", "source,target,w", "1,2,3.5", "2,1,3.5", "2,5,1")
    weighted = Graph.from_edge_index([[0], [1]], np.zeros((2, 3)), edge_weight=[1.0])
    both = delta.read_new(weighted, TableOptions(weight="w"), nodes={}, edges={EDGE: edges})
    found, listed = both.nodes[NODE], both.edges[EDGE]
    assert found.rows == 0
    assert found.x is None
    assert found.ids[listed.pairs].tolist() == [[1, 2], [2, 5]]
    assert listed.weight.tolist() == [7.0, 1.0]
    nothing = delta.read_new(weighted, TableOptions(), nodes={}, edges={})
    assert (nothing.nodes, nothing.edges) == ({}, {})


def test_labels_and_split_are_read_where_they_are(prepared, tmp_path):
    nodes = table(tmp_path / "n.csv", "id,age,kind,part", "q,1,u,test", "r,2,,train")
    options = TableOptions(nodes=nodes, preparation=prepared, label=("Kind",), split="part")
    found, _, _ = read_new(None, options, width=len(prepared.features))
    assert found.class_names == ("u",)
    assert found.y.tolist() == [0, -1]
    assert found.masks["train_mask"].tolist() == [False, True]
    plain = table(tmp_path / "p.csv", "id,age", "q,1")
    found, _, _ = read_new(
        None,
        TableOptions(nodes=plain, preparation=prepared, label=("kind",), split="part"),
        width=len(prepared.features),
    )
    assert found.y is None
    assert found.masks == {}


def test_tags_that_are_not_given_are_absent(tmp_path):
    edges = table(tmp_path / "edges.csv", "source,target", "a,b", "b,c")
    nodes = table(tmp_path / "nodes.csv", "id,age", "a,1", "b,2", "c,3")
    tags = table(tmp_path / "tags.csv", "id,tag", "a,red", "b,blue", "c,red")
    prepared = read_tables(edges, nodes, tags=tags).preparation
    new = table(tmp_path / "n.csv", "id,age", "q,9")
    options = TableOptions(nodes=new, preparation=prepared)
    found, _, _ = read_new(None, options, width=3)
    assert (found.absent, found.features.tolist()) == (("tags",), [0])
    more = table(tmp_path / "t.csv", "id,tag", "q,blue", "q,new")
    found, _, _ = read_new(None, TableOptions(nodes=new, tags=more, preparation=prepared), width=3)
    full = found.x.toarray() if hasattr(found.x, "toarray") else found.x
    assert full.tolist() == [[9, *(1 if one == "tag=blue" else 0 for one in prepared.features[1:])]]
    with pytest.raises(GraphError, match="tags needs nodes"):
        read_new(None, TableOptions(tags=more, preparation=prepared), width=3)


def test_a_preparation_of_another_graph_is_refused(prepared, tmp_path):
    nodes = table(tmp_path / "n.csv", "id,age", "q,1")
    with pytest.raises(GraphError, match="features come from tables, and the graph has 4"):
        read_new(None, TableOptions(nodes=nodes, preparation=prepared), width=4)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["id", "3", "5", "3"], [3, 5]),
        (["3", "5"], [3, 5]),
        (["id", "003", "5"], ["003", "5"]),
        (["why,node", "old,b", "old,a"], ["a", "b"]),
    ],
)
def test_lists_of_ids(tmp_path, lines, expected):
    assert read_ids(table(tmp_path / "gone.csv", *lines), TableOptions())[0].tolist() == expected


def test_ids_from_python():
    assert read_ids([3, 5], TableOptions())[0].tolist() == [3, 5]
    assert read_ids(("a", 5), TableOptions())[0].tolist() == ["a", "5"]
    assert read_ids(pyarrow.table({"id": ["x"]}), TableOptions())[0].tolist() == ["x"]
    with pytest.raises(GraphError, match="column 'id' is empty"):
        read_ids(pyarrow.table({"id": ["x", None]}), TableOptions())


def test_pairs_to_remove(tmp_path):
    cut = table(tmp_path / "cut.csv", "from,to,weight", "a,b,1", "b,a,1", "c,a,2")
    found = delta.read_pairs(small(1), TableOptions(weight="weight"), {EDGE: cut})
    ids, pairs = found.nodes[NODE].ids, found.edges[EDGE].pairs
    assert {frozenset(one) for one in np.asarray(ids)[pairs].tolist()} == {
        frozenset("ab"),
        frozenset("ac"),
    }
