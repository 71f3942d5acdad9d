"""The parts of a store are its rows: joined again, they are the graph, whatever it holds."""

import shutil

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl import Graph
from graphcl.errors import ParameterError, StoreError
from graphcl.files import atomic
from graphcl.graphs.collection import fingerprint
from graphcl.kernels.adjacency import Adjacency
from graphcl.store import partition
from graphcl.store.header import ORDERS, read_store
from graphcl.store.reader import MASKS, open_part
from graphcl.tabular.build import build_store
from tests.conftest import FUZZ, random_graph
from tests.forging import stored
from tests.kernels.test_adjacency_rows import with_weights


def plain():
    return random_graph(num_nodes=61)


def named():
    names = [f"node {number} é" * (number % 3) + str(number) for number in range(61)]
    return plain().replace(node_ids=np.array(names, dtype=object))


def numbered():
    return plain().replace(node_ids=np.arange(61) * 7 + 2**40)


def sparse():
    return plain().replace(x=scipy.sparse.csr_array(np.maximum(plain().x, 0)))


def weighted():
    return with_weights(plain())


def several_labels():
    y = np.random.default_rng(0).integers(0, 2, (61, 4))
    return plain().replace(y=y, class_names=("a", "b", "c", "d"))


def without_edges():
    return Graph.from_edge_index(np.empty((2, 0), int), np.ones((61, 2)), name="lone")


WRITES, CITES, KNOWS, ON = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("author", "knows", "author"),
    ("paper", "on", "topic"),
)


def typed_graph(seed=0, authors=9, papers=14, topics=3, edges=40):
    """Features dense, sparse and none; weights, vectors, edges with the same ends, both kinds."""
    random = np.random.default_rng(seed)
    sizes = {"author": authors, "paper": papers, "topic": topics}

    def between(key, count):
        limits = (sizes[key[0]], sizes[key[2]])
        return random.integers(0, limits, (count, 2)).T

    knows = between(KNOWS, edges)
    words = scipy.sparse.csr_array((random.random((papers, 5)) < 0.4).astype(np.float32))
    names = np.array([f"paper {number} é" for number in range(papers)], dtype=object)
    return Graph.from_edges(
        {
            "author": random.normal(size=(authors, 4)),
            "paper": {
                "x": words,
                "node_ids": names,
                "y": random.integers(0, 3, papers),
                "train_mask": random.random(papers) < 0.5,
            },
            "topic": topics,
        },
        {
            WRITES: {
                "edge_index": between(WRITES, edges),
                "edge_features": random.normal(size=(edges, 2)),
            },
            CITES: {"edge_index": between(CITES, edges), "edge_weight": random.random(edges) + 0.5},
            KNOWS: {
                "edge_index": knows[:, knows[0] != knows[1]],
                "undirected": True,
            },
            ON: between(ON, edges),
        },
        name="library",
    )


def typed():
    return typed_graph(edges=60)


GRAPHS = (plain, named, numbered, sparse, weighted, several_labels, without_edges)


def saved(graph, path, **options):
    graph.save(path, **options)
    return path


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.parametrize("block", [256, 1 << 24])
def test_parts_are_the_graph(tmp_path, monkeypatch, make, order, block):
    monkeypatch.setattr(partition, "BLOCK_BYTES", block)  # several blocks, and one
    store = saved(make(), tmp_path / "store")
    build_store(store, out=tmp_path / "parts", parts=4, order=order)
    same_graph(store, tmp_path / "parts")
    parts, graph = read_store(tmp_path / "parts"), Graph.open(tmp_path / "parts", restored=False)
    owners = parts.types["node"].owner(graph.edge_index())
    assert parts.cut_edges == int((owners[0] != owners[1]).sum()) // 2
    assert (parts.num_nodes, parts.num_edges) == (graph.num_nodes, graph.num_edges)
    assert {path.name for path in tmp_path.iterdir()} == {"store", "parts"}


def test_features_keep_their_type(tmp_path):
    store = saved(plain(), tmp_path / "store", features="float16")
    build_store(store, out=tmp_path / "parts", parts=3, order="hash")
    same_graph(store, tmp_path / "parts")


def test_as_is_is_the_store_itself_bit_for_bit(tmp_path):
    store = saved(weighted(), tmp_path / "store")
    build_store(store, out=tmp_path / "parts", parts=5, order="as-is")
    old, new = Graph.open(store), Graph.open(tmp_path / "parts")
    for name in ("indptr", "indices", "edge_weight", "x"):
        np.testing.assert_array_equal(getattr(new, name), getattr(old, name))
    assert new.node_ids is None


def test_the_same_division_has_the_same_build_and_another_has_another(tmp_path):
    store = saved(plain(), tmp_path / "store")
    builds = []
    for place, (parts, order) in enumerate([(3, "hash"), (3, "hash"), (4, "hash"), (3, "as-is")]):
        build_store(store, out=tmp_path / str(place), parts=parts, order=order)
        builds.append(read_store(tmp_path / str(place)).build)
    assert builds[0] == builds[1]
    assert len(set(builds)) == 3
    files = [stored(tmp_path / place, "x", 1) for place in "01"]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_one_part_for_every_node_is_the_limit(tmp_path):
    store = saved(plain(), tmp_path / "store")
    build_store(store, out=tmp_path / "parts", parts=61, order="neighbours")
    same_graph(store, tmp_path / "parts")
    assert open_part(tmp_path / "parts", 60).nodes["node"].fields["x"].shape[0] == 1
    with pytest.raises(StoreError, match="has 61 nodes, too few for 62 parts"):
        build_store(store, out=tmp_path / "more", parts=62, order="hash")
    for parts, order in ((0, "hash"), (2, "random")):
        with pytest.raises(ParameterError, match=r"build: (parts|order) must be"):
            build_store(store, out=tmp_path / "more", parts=parts, order=order)
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize("make", [plain, typed])
def test_nothing_is_half_written_or_overwritten(tmp_path, monkeypatch, make):
    store = saved(make(), tmp_path / "store")
    options = {"parts": 3, "order": "hash"}
    build_store(store, out=tmp_path / "parts", **options)
    before = (tmp_path / "parts/store.json").read_text()
    with pytest.raises(StoreError, match="already holds a store"):
        build_store(store, out=tmp_path / "parts", **options)
    with pytest.raises(StoreError, match="parts: is in parts already"):
        build_store(tmp_path / "parts", out=tmp_path / "again", **options)
    too_many = f"has {make().num_nodes} nodes, too few for 99 parts"
    with pytest.raises(StoreError, match=too_many):
        build_store(store, out=tmp_path / "again", parts=99, order="hash")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(partition, "write_rows", full)
    with pytest.raises(OSError, match="No space"):
        build_store(store, out=tmp_path / "parts", overwrite=True, parts=2, order="hash")
    assert (tmp_path / "parts/store.json").read_text() == before
    assert {path.name for path in tmp_path.iterdir()} == {"store", "parts"}
    monkeypatch.undo()
    build_store(store, out=tmp_path / "parts", overwrite=True, parts=2, order="hash")
    assert len(read_store(tmp_path / "parts")) == 2


@pytest.mark.parametrize("make", [plain, typed])
def test_a_damaged_store_is_refused_before_a_loop_reads_it(tmp_path, make):
    store = saved(make(), tmp_path / "store")
    indices = np.lib.format.open_memmap(stored(store, "indices", folder="relation-0"), mode="r+")
    indices[5] = 61
    indices.flush()
    with pytest.raises(StoreError, match="indices holds 61; expected 0 to "):
        build_store(store, out=tmp_path / "parts", parts=2, order="neighbours")
    assert not (tmp_path / "parts").exists()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("make", [*GRAPHS, typed])
def test_the_graph_that_was_divided_comes_back_in_its_own_order(tmp_path, make, order):
    kinds = {"float32", "float16"} if make is plain else {"float32"}
    for kind in sorted(kinds):
        store = saved(make(), tmp_path / f"store-{kind}", features=kind)
        build_store(store, out=tmp_path / kind, parts=3, order=order)
        before, after = Graph.open(store), Graph.open(tmp_path / kind)
        for key, relation in before.relations.items():
            fields = ("indptr", "indices", "edge_weight", "edge_features", "edge_ids")
            same_arrays(relation, after.relations[key], fields)
        for name, nodes in before.nodes.items():
            other = after.nodes[name]
            same_arrays(nodes, other, ("y", *MASKS))
            assert (nodes.node_ids is None) == (other.node_ids is None)
            assert ids(nodes).tolist() == ids(other).tolist()
            if nodes.x is not None:
                rows = np.arange(nodes.num_nodes)
                assert type(nodes.x[rows]) is type(other.x[rows])
                assert not (nodes.x[rows] != other.x[rows]).sum()
        known = fingerprint((before,))
        assert read_store(tmp_path / kind).source == (known, str(store), {})
        assert fingerprint((after,)) == known


def same_arrays(one, other, names):
    for name in names:
        before, after = getattr(one, name), getattr(other, name)
        assert (before is None) == (after is None), name
        if before is not None:
            np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("make", [plain, typed])
def test_one_part_is_mapped_and_has_both_directions(tmp_path, make):
    build_store(saved(make(), tmp_path / "store"), out=tmp_path / "one", parts=1, order="hash")
    graph, whole = Graph.open(tmp_path / "one"), Graph.open(tmp_path / "store")
    assert fingerprint((graph,)) == fingerprint((whole,))
    assert graph.store == tmp_path / "one"
    check_directions(read_store(tmp_path / "one"), whole)


def test_damaged_numbers_are_refused(tmp_path):
    build_store(saved(plain(), tmp_path / "store"), out=tmp_path / "parts", parts=2, order="hash")
    for number in range(2):
        file = stored(tmp_path / "parts", "rows", number)
        np.save(file, np.zeros_like(np.load(file)))
    with pytest.raises(StoreError, match=r"parts: the numbers in rows.npy are damaged"):
        Graph.open(tmp_path / "parts")


def ids(nodes):
    return np.arange(nodes.num_nodes) if nodes.node_ids is None else nodes.node_ids


def edges_of(graph, key):
    """All entries of a relation by the ids of their ends, with weights and vectors, sorted."""
    relation = graph.relations[key]
    sources, targets = relation.edge_index()
    columns = [ids(graph.nodes[key[0]])[sources], ids(graph.nodes[key[2]])[targets]]
    for array in (relation.edge_weight, relation.edge_features):
        if array is not None:
            columns += list(np.atleast_2d(np.asarray(array).T))
    return sorted(zip(*(map(str, column.tolist()) for column in columns), strict=True))


def same_graph(store, parts):
    """Nodes by their ids, and both directions of every relation, are those that were divided."""
    before, after = Graph.open(store), Graph.open(parts, restored=False)
    assert repr(before) == repr(after)
    for name, nodes in before.nodes.items():
        other = after.nodes[name]
        assert nodes.class_names == other.class_names
        assert getattr(nodes.x, "dtype", None) == getattr(other.x, "dtype", None)
        place = {str(one): at for at, one in enumerate(ids(other).tolist())}
        at = np.array([place[str(one)] for one in ids(nodes).tolist()])
        assert sorted(at.tolist()) == list(range(nodes.num_nodes))
        for field in ("y", *MASKS):
            assert (getattr(nodes, field) is None) == (getattr(other, field) is None)
            if getattr(nodes, field) is not None:
                assert np.array_equal(getattr(other, field)[at], getattr(nodes, field))
        if nodes.x is not None:
            tables = (nodes.x, other.x)
            dense = [np.asarray(x.toarray() if scipy.sparse.issparse(x) else x) for x in tables]
            assert np.array_equal(dense[1][at], dense[0])
    for key, relation in before.relations.items():
        assert edges_of(before, key) == edges_of(after, key)
        assert relation.self_loops_removed == after.relations[key].self_loops_removed
    check_directions(read_store(parts), after)


def cut_of(parts, graph, key):
    sources, targets = graph.relations[key].edge_index()
    apart = parts.types[key[0]].owner(sources) != parts.types[key[2]].owner(targets)
    return int(apart.sum()) // (2 if graph.relations[key].undirected else 1)


def check_directions(parts, whole):
    """Both directions of every relation are those of the whole graph, row by row."""
    every = [open_part(parts, number) for number in range(len(parts))]
    for part in every:
        part.check()
    for key, relation in whole.relations.items():
        adjacency = Adjacency.from_csr(
            relation.indptr,
            relation.indices,
            device=torch.device("cpu"),
            edge_ids=relation.edge_ids,
            senders=None if key[0] == key[2] else whole.nodes[key[0]].num_nodes,
            directed=not relation.undirected,
        )
        for backwards in parts.relations[key].backwards:
            csr = adjacency.toward(backwards)
            entries = np.arange(len(relation.indices)) if csr.entries is None else csr.entries
            entries = np.asarray(entries)
            each = [part.edges[key, backwards] for part in every]
            lengths = np.concatenate([np.diff(one["indptr"]) for one in each])
            assert np.array_equal(lengths, np.diff(csr.indptr))
            expected = {"indices": csr.indices}
            for name in ("edge_weight", "edge_features", "edge_ids"):
                if getattr(relation, name) is not None:
                    expected[name] = getattr(relation, name)[entries]
            assert {"indptr", *expected} == set(each[0])
            for name, values in expected.items():
                assert np.array_equal(np.concatenate([one[name] for one in each]), values), name


@settings(parent=FUZZ, max_examples=12)
@given(
    st.integers(0, 1 << 30),
    st.integers(1, 5),
    st.sampled_from(ORDERS),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3), st.integers(0, 30)),
    st.sampled_from([16, 1 << 24]),
)
def test_parts_of_types_are_the_graph(tmp_path_factory, seed, count, order, sizes, block):
    folder = tmp_path_factory.mktemp("typed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "BLOCK_BYTES", block)  # several blocks, and one
        patch.setattr(atomic, "sync", lambda _: None)  # many small files
        graph = typed_graph(seed, *sizes)
        graph.save(folder / "store")
        count = min(count, graph.num_nodes)
        build_store(folder / "store", out=folder / "parts", parts=count, order=order)
    parts, whole = read_store(folder / "parts"), Graph.open(folder / "parts", restored=False)
    same_graph(folder / "store", folder / "parts")
    assert (parts.num_nodes, parts.num_edges) == (graph.num_nodes, graph.num_edges)
    assert sum(parts.sizes) == graph.num_nodes
    assert min(parts.sizes) >= 1 or order == "as-is"
    for key, relation in parts.relations.items():
        assert relation.cut_edges == cut_of(parts, whole, key)
    if order == "as-is":
        assert all(one.node_ids is None for name, one in whole.nodes.items() if name != "paper")
    assert {path.name for path in folder.iterdir()} == {"store", "parts"}
    shutil.rmtree(folder)


def test_neighbours_of_all_types_come_together(tmp_path):
    """Groups of authors, papers and topics without an edge between groups, dealt like cards."""
    groups, each = 4, 30
    node = np.arange(groups * each)
    random = np.random.default_rng(0)
    other = node % groups + groups * random.integers(0, each, (3, groups * each))
    edges = np.concatenate([np.stack([node, one]) for one in other], axis=1)
    types = dict.fromkeys(("author", "paper", "topic"), groups * each)
    Graph.from_edges(types, {WRITES: edges, ON: edges}).save(tmp_path / "store")
    cut = {}
    for order in ("neighbours", "hash"):
        build_store(tmp_path / "store", out=tmp_path / order, parts=groups, order=order)
        cut[order] = read_store(tmp_path / order).cut_share
    assert cut["neighbours"] < 0.1 < 0.7 < cut["hash"] < 0.8
