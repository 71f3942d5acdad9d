"""Tables that name nodes by id, against graphs that are read whole from tables."""

from dataclasses import replace

import numpy as np
import pyarrow
import pytest
import scipy.sparse

from graphcl.errors import GraphError
from graphcl.graphs.graph import Graph
from graphcl.graphs.structural import structural_features
from graphcl.store.columns import Names
from graphcl.tabular.build import read_tables
from graphcl.tabular.options import TableOptions
from graphcl.updating import matching


def grow(graph, options, **tables):
    return matching.grow(graph, replace(options, nodes=None), nodes=options.nodes, **tables)


def nodes_of(ids, **more):
    numbers = {f"f{k}": [float(10 * row + k) for row in range(len(ids))] for k in range(2)}
    return pyarrow.table({"id": ids, **numbers, **more})


def edges_of(pairs, **more):
    first, second = ([str(pair[end]) for pair in pairs] for end in (0, 1))
    return pyarrow.table({"source": first, "target": second, **more})


@pytest.fixture
def old():
    nodes = nodes_of(list("abcde"), kind=list("xyxyx"), part=["train", "val", "test", "", "train"])
    edges = edges_of([("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")])
    return read_tables(edges, nodes, label="kind", split="part", one_hot=())


def options(graph, **more):
    return TableOptions(preparation=graph.preparation, label=("kind",), split="part", **more)


def ids(graph):
    count = graph.num_nodes
    return list(range(count)) if graph.node_ids is None else graph.node_ids[:].tolist()


def linked(graph):
    names = ids(graph)
    pairs = graph.edge_index().T.tolist()
    return {(names[a], names[b]) for a, b in pairs if names[a] < names[b]}


def test_everything_at_once(old):
    new = pyarrow.table(
        {
            "id": ["z", "c", "y"],
            "f0": [1.5, 2.5, 3.5],
            "f1": [4.0, 5.0, 6.0],
            "kind": ["x", "w", None],
            "part": ["test", "", "train"],
        }
    )
    grown = grow(
        old,
        options(old, nodes=new),
        edges=edges_of([("z", "a"), ("z", "y"), ("e", "a"), ("a", "b")]),
        remove_nodes=["d"],
        remove_edges=edges_of([("c", "b")]),
    )
    graph = grown.changed.graph
    assert ids(graph) == ["a", "b", "c", "e", "z", "y"]
    assert linked(graph) == {("a", "b"), ("a", "z"), ("a", "e"), ("y", "z")}
    assert graph.x[2].tolist() == [2.5, 5.0]
    assert graph.x[4:].tolist() == [[1.5, 4.0], [3.5, 6.0]]
    assert graph.x[[0, 1, 3]].tolist() == old.x[[0, 1, 4]].tolist()
    assert graph.class_names == ("x", "y", "w")
    assert graph.y.tolist() == [0, 1, 2, 0, 0, -1]
    assert graph.train_mask.tolist() == [True, False, False, True, False, True]
    assert graph.val_mask.tolist() == [False, True, False, False, False, False]
    assert graph.test_mask.tolist() == [False, False, False, False, True, False]
    assert grown.counts == {
        "new_nodes": 2,
        "removed_nodes": 1,
        "changed_nodes": 1,
        "edges_before": 4,
        "edges_after": 4,
    }
    assert grown.changed.kept["node"].tolist() == [0, 1, 2, 4]
    assert grown.changed.moved["node"].tolist() == [2, 4, 5]
    assert grown.changed.rewired["node"].tolist() == [0, 1, 2, 3, 4, 5]


def test_columns_that_are_absent_keep_their_values(old):
    graph = grow(old, options(old, nodes=pyarrow.table({"id": ["b"], "f1": [99.0]}))).changed.graph
    assert graph.x[1].tolist() == [old.x[1, 0], 99.0]
    labelled = pyarrow.table({"id": ["b"], "kind": ["x"]})
    grown = grow(old, options(old, nodes=labelled))
    assert grown.changed.graph.y.tolist() == [0, 0, 0, 1, 0]
    assert not len(grown.changed.moved["node"])
    with pytest.raises(GraphError, match=r"has no column 'f0'.* but 'q' is new"):
        grow(old, options(old, nodes=pyarrow.table({"id": ["q"], "f1": [99.0]})))


def test_categories_and_means_are_those_of_the_training():
    nodes = pyarrow.table(
        {"id": [1, 2, 3, 4, 5, 6], "c": list("uvuvuv"), "n": [1.0, 2.0, 3.0, None, 5.0, 4.0]}
    )
    old = read_tables(edges_of([(1, 2), (3, 4)]), nodes)
    new = pyarrow.table({"id": [9, 8], "c": ["v", "new"], "n": [None, 7.0]})
    grown = grow(old, TableOptions(preparation=old.preparation, nodes=new))
    x = grown.changed.graph.x
    assert x[6:].tolist() == [[0, 1, 3.0], [0, 0, 7.0]]
    assert any("new to the model" in note for note in grown.notes)
    assert any("the training's mean" in note for note in grown.notes)


def test_known_edges_change_nothing_and_weights_are_replaced():
    x = np.zeros((3, 1), np.float32)
    weighted = Graph.from_edge_index([[0, 1], [1, 2]], x, edge_weight=[2.0, 3.0])
    edges = edges_of([(0, 1), (0, 2)], weight=[5.0, 7.0])
    grown = grow(weighted, TableOptions(weight="weight"), edges=edges)
    found = scipy.sparse.csr_array(
        (grown.changed.graph.edge_weight, grown.changed.graph.indices, grown.changed.graph.indptr)
    )
    assert found.toarray().tolist() == [[0, 5, 7], [5, 0, 3], [7, 3, 0]]
    with pytest.raises(GraphError, match="edges have weights; name their column"):
        grow(weighted, TableOptions(), edges=edges)
    plain = Graph.from_edge_index([[0, 1], [1, 2]], x)
    with pytest.raises(GraphError, match="edges have no weights"):
        grow(plain, TableOptions(weight="weight"), edges=edges)
    again = grow(plain, TableOptions(), edges=edges_of([(1, 0)]))
    assert not len(again.changed.rewired["node"])


@pytest.mark.parametrize(
    ("ids_before", "new", "after"),
    [
        (None, [3, 4], None),
        (None, [7, 9], [0, 1, 2, 7, 9]),
        (None, ["q"], ["0", "1", "2", "q"]),
        ([10, 20, 30], [25], [10, 20, 30, 25]),
        ([10, 20, 30], ["q"], ["10", "20", "30", "q"]),
        (["u", "v", "w"], [5], ["u", "v", "w", "5"]),
        (["u", "v", "w"], ["é☃", "q"], ["u", "v", "w", "é☃", "q"]),
    ],
)
@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
def test_ids_of_every_kind(ids_before, new, after, stored, tmp_path):
    graph = Graph.from_edge_index([[0], [1]], np.zeros((3, 1), np.float32), node_ids=ids_before)
    if stored:
        graph.save(tmp_path / "store")
        graph = Graph.open(tmp_path / "store")
    table = pyarrow.table({"id": new, "value": [1.0] * len(new)})
    first = "0" if ids_before is None else str(ids_before[0])
    edges = edges_of([(first, one) for one in new])
    found = grow(graph, TableOptions(nodes=table), edges=edges).changed.graph
    assert (None if found.node_ids is None else found.node_ids[:].tolist()) == after
    assert found.indices[found.indptr[0] : found.indptr[1]].tolist() == [1, *range(3, 3 + len(new))]
    gone = ["0"] if ids_before is None else ids_before[:1]
    left = grow(found, TableOptions(), remove_nodes=gone).changed.graph
    assert ids(left) == (list(range(1, 5)) if after is None else after[1:])


def test_names_of_nodes_that_stay_are_not_copied_one_by_one():
    names = Names.of(["aa", "", "ccc", "d"])
    graph = Graph.from_edge_index([[0], [1]], np.zeros((4, 1), np.float32), node_ids=names)
    left = grow(graph, TableOptions(), remove_nodes=["aa", "d"]).changed.graph
    assert isinstance(left.node_ids, Names)
    assert left.node_ids.tolist() == ["", "ccc"]


def test_features_from_edges_are_computed_again():
    edges = edges_of([("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "f")])
    old = read_tables(edges, features="structural")
    grown = grow(
        old, TableOptions(features="structural"), edges=edges_of([("a", "c")]), remove_nodes=["f"]
    )
    graph = grown.changed.graph
    assert np.array_equal(graph.x, structural_features(graph.indptr, graph.indices))
    assert set(np.flatnonzero((graph.x != old.x[:5]).any(1))) <= set(grown.changed.moved["node"])
    new = pyarrow.table({"id": ["g"]})
    joined = edges_of([("g", "a")])
    graph = grow(old, TableOptions(features="structural", nodes=new), edges=joined).changed.graph
    assert np.array_equal(graph.x, structural_features(graph.indptr, graph.indices))


def test_sparse_features_of_columns_that_are_absent(old):
    x = scipy.sparse.csr_array(np.eye(4, dtype=np.float32))
    graph = Graph.from_edge_index([[0], [1]], x)
    table = pyarrow.table({"id": [1, 7], **{f"w{k}": [0.0, 2.0] for k in range(4)}})
    found = grow(graph, TableOptions(nodes=table)).changed.graph
    assert scipy.sparse.issparse(found.x)
    assert found.x.toarray().tolist() == [
        [1, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
        [2, 2, 2, 2],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"edges": edges_of([("a", "nobody")])}, "1 id is not in the graph, first 'nobody'"),
        ({"remove_nodes": ["aa"]}, "first 'aa'; did you mean 'a'"),
        ({"remove_edges": edges_of([("a", "e")])}, "1 edge is not in the graph, first 'a' – 'e'"),
        ({"remove_edges": edges_of([("a", "q")])}, "first 'q'"),
        ({"remove_nodes": list("abcde")}, "every node would be removed"),
        (
            {"edges": edges_of([("a", "c")]), "remove_nodes": ["c"]},
            "'c' is to be removed, and is named in the new edges",
        ),
        (
            {"nodes": nodes_of(["c"]), "remove_nodes": ["c"]},
            "'c' is to be removed, and is named in the new nodes",
        ),
        ({"nodes": nodes_of(["q", "q"])}, "rows 1 and 2 have the same id 'q'"),
    ],
)
def test_what_does_not_fit_is_refused(old, arguments, message):
    nodes = arguments.pop("nodes", None)
    with pytest.raises(GraphError, match=message):
        grow(old, options(old, nodes=nodes), **arguments)


def test_tables_for_a_graph_without_a_preparation():
    graph = Graph.from_edge_index([[0], [1]], np.zeros((2, 2), np.float32))
    with pytest.raises(GraphError, match="1 column of features; the graph has 2"):
        grow(graph, TableOptions(nodes=pyarrow.table({"id": [5], "a": [1.0]})))
    holes = pyarrow.table({"id": [5, 6], "a": [1.0, 2.0], "b": [None, 1.0]})
    with pytest.raises(GraphError, match="1 value is missing"):
        grow(graph, TableOptions(nodes=holes))
    matrix = TableOptions(nodes=np.ones((1, 2), np.float32), node_ids=[7])
    assert grow(graph, matrix).changed.graph.x[2].tolist() == [1, 1]
    wide = TableOptions(nodes=np.ones((1, 3), np.float32), node_ids=[7])
    with pytest.raises(GraphError, match="has 3 features; the graph has 2"):
        grow(graph, wide)


def test_labels_of_another_kind_are_refused(old):
    several = Graph.from_edge_index([[0], [1]], np.zeros((2, 1), np.float32), [[1, 0], [0, 1]])
    table = pyarrow.table({"id": [5], "a": [1.0], "kind": ["x"]})
    with pytest.raises(GraphError, match="labels are of another kind"):
        grow(several, TableOptions(nodes=table, label=("kind",)))
    numbers = Graph.from_edge_index([[0], [1]], np.zeros((2, 1), np.float32), [1, 0])
    with pytest.raises(GraphError, match="label 'x'; the graph's classes are numbers"):
        grow(numbers, TableOptions(nodes=table, label=("kind",)))
    more = pyarrow.table({"id": [5], "a": [1.0], "kind": [3]})
    found = grow(numbers, TableOptions(nodes=more, label=("kind",))).changed.graph
    assert found.y.tolist() == [1, 0, 3]


def test_new_nodes_have_a_number_as_the_graph_has():
    edges = pyarrow.table({"source": ["a"], "target": ["b"]})
    nodes = pyarrow.table({"id": ["a", "b"], "v": [1.0, 2.0], "price": [1.5, None]})
    old = read_tables(edges, nodes, label="price")
    # Alone, these whole numbers would be classes.
    new = pyarrow.table({"id": ["b", "c", "d"], "v": [1.0, 2, 3], "price": ["7", "8", None]})
    how = TableOptions(nodes=new, label=("price",), preparation=old.preparation)
    grown = grow(old, how).changed.graph
    assert np.array_equal(grown.y, [1.5, 7, 8, np.nan], equal_nan=True)
    words = new.set_column(2, "price", pyarrow.array(["dear"] * 3))
    with pytest.raises(GraphError, match="'dear' is not a number"):
        grow(old, replace(how, nodes=words))
    with pytest.raises(GraphError, match="labels are of another kind"):
        grow(old, replace(how, label_kind="classes"))


def test_ids_that_look_like_known_numbers_are_said():
    edges = pyarrow.table({"source": [1, 2, 3], "target": [2, 3, 7]})
    nodes = pyarrow.table({"id": [1, 2, 3, 7], "f0": [0.0, 1, 2, 3], "f1": [1.0, 1, 1, 1]})
    graph = read_tables(edges, nodes)
    new = nodes_of(["1.0", "007", "x", "9.5", "11"])
    found = grow(graph, TableOptions(preparation=graph.preparation, nodes=new))
    assert found.counts["new_nodes"] == 5
    assert [line for line in found.notes if "looks" in line or "look" in line] == [
        "nodes: 2 new ids look like one that the graph has, first '1.0' like 1: ids are taken as "
        "they are written, and these are new nodes"
    ]
    right = nodes_of([1, 12])
    found = grow(graph, TableOptions(preparation=graph.preparation, nodes=right))
    assert found.counts["new_nodes"] == 1
    assert not any("look" in line for line in found.notes)


def test_columns_that_the_model_does_not_know_are_said(old):
    new = nodes_of(["z"], kind=["x"], part=["train"], colour=["red"], size=[3])
    found = grow(old, options(old, nodes=new))
    assert (
        "nodes: 2 columns are not used, because the model was not trained on them: "
        "'colour', 'size'" in found.notes
    )
    found = grow(old, options(old, nodes=new, ignore=("colour", "size")))
    assert not any("not used" in line for line in found.notes)
    # There is no list of edges, so nothing is said of one.
    assert not any(line.startswith("edges:") for line in found.notes)


def test_tables_without_rows_are_refused(old):
    def said(**tables):
        with pytest.raises(GraphError) as caught:
            grow(old, options(old, nodes=tables.pop("nodes", None)), **tables)
        return str(caught.value)

    nothing = edges_of([])
    where = "has no rows, so nothing would change; leave it out"
    assert said(nodes=nodes_of([])) == f"nodes: {where}"
    assert said(edges=nothing) == f"edges: {where}"
    assert said(remove_edges=nothing) == f"remove_edges: {where}"
    assert (
        said(remove_nodes=[]) == "remove_nodes: has no ids, so nothing would change; leave it out"
    )
    assert where in said(remove_nodes=pyarrow.table({"id": pyarrow.array([], pyarrow.string())}))


def test_several_labels_of_new_nodes_and_nodes_without_any():
    y = [[1, 0], [-1, -1]]
    several = Graph.from_edge_index([[0], [1]], np.zeros((2, 1), np.float32), y)
    several = several.replace(class_names=("x", "y"))
    table = pyarrow.table({"id": [5, 6, 7], "a": [1.0, 2.0, 3.0], "kind": ["x|z", None, "y"]})
    options = TableOptions(nodes=table, label=("kind",), label_separator="|")
    found = grow(several, options).changed.graph
    assert found.class_names == ("x", "y", "z")
    none = [-1, -1, -1]
    assert found.y.tolist() == [[1, 0, 0], none, [1, 0, 1], none, [0, 1, 0]]


def test_edges_to_unknown_nodes_are_left_out_if_the_caller_says_so(old):
    new = pyarrow.table({"id": ["z"], "f0": [1.5], "f1": [4.0]})
    edges = edges_of([("nobody", "a"), ("z", "a"), ("a", "e"), ("e", "nobody")])
    with pytest.raises(GraphError, match="1 id is not in the graph, first 'nobody'"):
        grow(old, options(old, nodes=new), edges=edges)
    grown = grow(old, options(old, nodes=new, unknown_edges="drop"), edges=edges)
    assert "edges: 2 edges name 1 unknown node: left out" in grown.notes
    assert linked(grown.changed.graph) == linked(old) | {("a", "z"), ("a", "e")}


def test_the_columns_of_what_is_removed_are_said(old):
    nodes = pyarrow.table({"row": ["0", "1"], "key": ["a", "b"]})
    edges = pyarrow.table({"one": ["c"], "two": ["d"], "three": ["e"]})
    notes = grow(old, options(old), remove_nodes=nodes, remove_edges=edges).notes
    assert any("ids in 'key' (guessed" in line for line in notes)
    assert any("'one' – 'two' (guessed" in line for line in notes)
