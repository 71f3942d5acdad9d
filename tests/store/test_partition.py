"""The parts of a store are its rows: joined again, they are the graph, whatever it holds."""

import json

import numpy as np
import pytest
import scipy.sparse

from graphcl import Graph
from graphcl.errors import ParameterError, StoreError
from graphcl.graphs.collection import fingerprint
from graphcl.store import moving, ordering, partition
from graphcl.store.columns import ScaledFeatures
from graphcl.store.parts import ORDERS, join_parts, open_part, read_parts, whole_fields
from graphcl.store.reader import MASKS
from graphcl.tabular.build import partition_store
from tests.conftest import random_graph
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


GRAPHS = (plain, named, numbered, sparse, weighted, several_labels, without_edges)


def saved(graph, path, **options):
    graph.save(path, **options)
    return path


def ids_of(fields, count):
    ids = fields.get("node_ids")
    return np.arange(count).astype(str) if ids is None else np.array(list(ids)).astype(str)


def same_graph(store, parts):
    """Compares by id: neighbours, weights, features, labels and masks of every node."""
    graph, new = Graph.open(store), join_parts(parts)
    old = vars(graph.only_type) | vars(graph.only_relation) | {"name": graph.name}
    old = {key: value for key, value in old.items() if value is not None}
    count = len(old["indptr"]) - 1
    old_ids, new_ids = ids_of(old, count), ids_of(new, count)
    place = {name: number for number, name in enumerate(new_ids.tolist())}
    at = np.array([place[name] for name in old_ids.tolist()])
    assert sorted(at.tolist()) == list(range(count))
    for name in ("y", "train_mask", "val_mask", "test_mask"):
        assert (name in old) == (name in new)
        if name in old:
            np.testing.assert_array_equal(np.asarray(new[name])[at], old[name])
    assert isinstance(new["x"], ScaledFeatures) == isinstance(old["x"], ScaledFeatures)
    tables = (new["x"], old["x"])
    dense = [np.asarray(x.toarray() if scipy.sparse.issparse(x) else x) for x in tables]
    np.testing.assert_array_equal(dense[0][at], dense[1])
    for node in range(count):
        before = slice(*old["indptr"][node : node + 2])
        after = slice(*new["indptr"][at[node] : at[node] + 2])
        assert (np.diff(new["indices"][after]) > 0).all()
        order = np.argsort(at[old["indices"][before]])
        np.testing.assert_array_equal(new["indices"][after], at[old["indices"][before]][order])
        if "edge_weight" in old:
            weights = old["edge_weight"][before][order]
            np.testing.assert_array_equal(new["edge_weight"][after], weights)
    for key in ("name", "class_names", "self_loops_removed"):
        assert new[key] == old[key]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.parametrize("block", [256, 1 << 24])
def test_parts_are_the_graph(tmp_path, monkeypatch, make, order, block):
    for module in (ordering, moving):  # several blocks, and one
        monkeypatch.setattr(module, "BLOCK_BYTES", block)
    store = saved(make(), tmp_path / "store")
    partition_store(store, out=tmp_path / "parts", parts=4, order=order)
    same_graph(store, tmp_path / "parts")
    parts, graph = read_parts(tmp_path / "parts"), Graph.from_csr(**join_parts(tmp_path / "parts"))
    owners = parts.owner(graph.edge_index())
    assert parts.cut_edges == int((owners[0] != owners[1]).sum()) // 2
    assert (parts.num_nodes, parts.num_edges) == (graph.num_nodes, graph.num_edges)
    assert {path.name for path in tmp_path.iterdir()} == {"store", "parts"}


@pytest.mark.parametrize("features", ["float16", "int8"])
def test_features_keep_their_type(tmp_path, features):
    graph = plain()
    x = graph.x.copy()
    x[-1] *= 1000  # beyond the training nodes: int8 gives it a scale of its own
    mask = np.arange(61) < 20
    graph = graph.replace(x=x, train_mask=mask)
    store = saved(graph, tmp_path / "store", features=features)
    partition_store(store, out=tmp_path / "parts", parts=3, order="hash")
    same_graph(store, tmp_path / "parts")


def test_as_is_is_the_store_itself_bit_for_bit(tmp_path):
    store = saved(weighted(), tmp_path / "store")
    partition_store(store, out=tmp_path / "parts", parts=5, order="as-is")
    old, new = Graph.open(store), join_parts(tmp_path / "parts")
    for name in ("indptr", "indices", "edge_weight", "x"):
        np.testing.assert_array_equal(new[name], getattr(old, name))
    assert "node_ids" not in new


def test_the_same_division_has_the_same_build_and_another_has_another(tmp_path):
    store = saved(plain(), tmp_path / "store")
    builds = []
    for place, (parts, order) in enumerate([(3, "hash"), (3, "hash"), (4, "hash"), (3, "as-is")]):
        partition_store(store, out=tmp_path / str(place), parts=parts, order=order)
        builds.append(read_parts(tmp_path / str(place)).build)
    assert builds[0] == builds[1]
    assert len(set(builds)) == 3
    assert (tmp_path / "0/part-00001/x.npy").read_bytes() == (
        tmp_path / "1/part-00001/x.npy"
    ).read_bytes()


def test_one_part_for_every_node_is_the_limit(tmp_path):
    store = saved(plain(), tmp_path / "store")
    partition_store(store, out=tmp_path / "parts", parts=61, order="neighbours")
    same_graph(store, tmp_path / "parts")
    assert open_part(tmp_path / "parts", 60).fields["x"].shape[0] == 1
    with pytest.raises(StoreError, match="has 61 nodes, too few for 62 parts"):
        partition_store(store, out=tmp_path / "more", parts=62, order="hash")
    for parts, order in ((0, "hash"), (2, "random")):
        with pytest.raises(ParameterError, match=r"partition: --(parts|order) must be"):
            partition_store(store, out=tmp_path / "more", parts=parts, order=order)
    assert not (tmp_path / "more").exists()


def test_nothing_is_half_written_or_overwritten(tmp_path, monkeypatch):
    store = saved(plain(), tmp_path / "store")
    options = {"parts": 3, "order": "hash"}
    partition_store(store, out=tmp_path / "parts", **options)
    before = (tmp_path / "parts/parts.json").read_text()
    with pytest.raises(StoreError, match="already holds a store in parts"):
        partition_store(store, out=tmp_path / "parts", **options)
    with pytest.raises(StoreError, match="not part of a"):
        partition_store(store, out=store, overwrite=True, **options)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(partition, "write_rows", full)
    with pytest.raises(OSError, match="No space"):
        partition_store(store, out=tmp_path / "parts", overwrite=True, parts=2, order="hash")
    assert (tmp_path / "parts/parts.json").read_text() == before
    assert {path.name for path in tmp_path.iterdir()} == {"store", "parts"}
    monkeypatch.undo()
    partition_store(store, out=tmp_path / "parts", overwrite=True, parts=2, order="hash")
    assert len(json.loads((tmp_path / "parts/parts.json").read_text())["parts"]) == 2


def test_a_damaged_store_is_refused_before_a_loop_reads_it(tmp_path):
    store = saved(plain(), tmp_path / "store")
    indices = np.lib.format.open_memmap(store / "indices.npy", mode="r+")
    indices[5] = 61
    indices.flush()
    with pytest.raises(StoreError, match="indices holds 61; expected 0 to 60"):
        partition_store(store, out=tmp_path / "parts", parts=2, order="neighbours")
    assert not (tmp_path / "parts").exists()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("make", GRAPHS)
def test_the_graph_that_was_divided_comes_back_in_its_own_order(tmp_path, make, order):
    kinds = {"float32", "float16", "int8"} if make is plain else {"float32"}
    for kind in sorted(kinds):
        store = saved(make(), tmp_path / f"store-{kind}", features=kind)
        partition_store(store, out=tmp_path / kind, parts=3, order=order)
        parts, before = read_parts(tmp_path / kind), Graph.open(store)
        after = Graph.from_csr(**whole_fields(parts)[0])
        for name in ("indptr", "indices", "edge_weight", "y", *MASKS):
            one, other = getattr(before, name), getattr(after, name)
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_array_equal(one, other)
        assert (before.node_ids is None) == (after.node_ids is None)
        if before.node_ids is not None:
            assert list(before.node_ids) == list(after.node_ids)
        rows = np.arange(61)
        one, other = before.x[rows], after.x[rows]
        assert type(one) is type(other)
        assert not (one != other).sum()
        known = fingerprint((before,))
        assert parts.source == (known, str(store), {})
        assert fingerprint((after,)) == known


def test_damaged_numbers_are_refused(tmp_path):
    partition_store(
        saved(plain(), tmp_path / "store"), out=tmp_path / "parts", parts=2, order="hash"
    )
    for number in range(2):
        file = tmp_path / f"parts/part-0000{number}/rows.npy"
        np.save(file, np.zeros_like(np.load(file)))
    with pytest.raises(StoreError, match=r"parts: the numbers in rows.npy are damaged"):
        whole_fields(read_parts(tmp_path / "parts"))
