"""The parts of a typed store are its rows and edges, each where its node is."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import StoreError
from graphcl.files import atomic
from graphcl.graphs import typed_partition
from graphcl.graphs.collection import fingerprint
from graphcl.graphs.graph import Graph
from graphcl.graphs.typed_partition import join_typed_parts
from graphcl.kernels.adjacency import Adjacency
from graphcl.store import moving, ordering
from graphcl.store.parts import ORDERS
from graphcl.store.typed_parts import (
    open_typed_part,
    read_typed_parts,
    verify_typed_part,
)
from graphcl.tabular.build import partition_store
from tests.conftest import FUZZ

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


def ids_of(nodes):
    return np.arange(nodes.num_nodes) if nodes.node_ids is None else nodes.node_ids


def edges_of(graph, key):
    """All entries of a relation by the ids of their ends, with weights and vectors, sorted."""
    relation = graph.relations[key]
    sources, targets = relation.edge_index()
    columns = [ids_of(graph.nodes[key[0]])[sources], ids_of(graph.nodes[key[2]])[targets]]
    for array in (relation.edge_weight, relation.edge_features):
        if array is not None:
            columns += list(np.atleast_2d(np.asarray(array).T))
    return sorted(zip(*(map(str, column.tolist()) for column in columns), strict=True))


def same_graph(before, after):
    assert repr(before) == repr(after)
    for name, nodes in before.nodes.items():
        other = after.nodes[name]
        place = {str(one): at for at, one in enumerate(ids_of(other).tolist())}
        at = np.array([place[str(one)] for one in ids_of(nodes).tolist()])
        assert sorted(at.tolist()) == list(range(nodes.num_nodes))
        for field in ("y", "train_mask"):
            if getattr(nodes, field) is not None:
                assert np.array_equal(getattr(other, field)[at], getattr(nodes, field))
        if nodes.x is not None:
            tables = (nodes.x, other.x)
            dense = [np.asarray(x.toarray() if scipy.sparse.issparse(x) else x) for x in tables]
            assert np.array_equal(dense[1][at], dense[0])
    for key in before.relations:
        assert edges_of(before, key) == edges_of(after, key)


def cut_of(parts, graph, key):
    sources, targets = graph.relations[key].edge_index()
    apart = parts.types[key[0]].owner(sources) != parts.types[key[2]].owner(targets)
    return int(apart.sum()) // (2 if graph.relations[key].undirected else 1)


def check_directions(path, parts, whole):
    """Both directions of every relation are those of the whole graph, row by row."""
    every = [open_typed_part(path, number) for number in range(len(parts))]
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
            csr = adjacency.toward(backwards).csr
            entries = np.arange(len(relation.indices)) if csr.entries is None else csr.entries
            entries = np.asarray(entries)
            each = [part.edges[key, backwards] for part in every]
            lengths = np.concatenate([np.diff(one["indptr"]) for one in each])
            assert np.array_equal(lengths, np.diff(csr.indptr))
            numbers = entries if relation.edge_ids is None else relation.edge_ids[entries]
            expected = {"indices": csr.indices, "edge_ids": numbers}
            for name in ("edge_weight", "edge_features"):
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
def test_parts_are_the_graph(tmp_path_factory, seed, count, order, sizes, block):
    folder = tmp_path_factory.mktemp("typed")
    with pytest.MonkeyPatch.context() as patch:
        for module in (ordering, moving, typed_partition):  # several blocks, and one
            patch.setattr(module, "BLOCK_BYTES", block)
        patch.setattr(atomic, "sync", lambda _: None)  # many small files
        graph = typed_graph(seed, *sizes)
        graph.save(folder / "store")
        count = min(count, graph.num_nodes)
        partition_store(folder / "store", out=folder / "parts", parts=count, order=order)
    parts, whole = read_typed_parts(folder / "parts"), join_typed_parts(folder / "parts")
    same_graph(graph, whole)
    check_directions(folder / "parts", parts, whole)
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
        partition_store(tmp_path / "store", out=tmp_path / order, parts=groups, order=order)
        cut[order] = read_typed_parts(tmp_path / order).cut_share
    assert cut["neighbours"] < 0.1 < 0.7 < cut["hash"] < 0.8


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    folder = tmp_path_factory.mktemp("typed")
    typed_graph().save(folder / "store")
    partition_store(folder / "store", out=folder / "parts", parts=3, order="hash")
    partition_store(folder / "store", out=folder / "other", parts=3, order="neighbours")
    return folder


def test_the_same_division_has_the_same_build(divided, tmp_path):
    partition_store(divided / "store", out=tmp_path / "again", parts=3, order="hash")
    name = "part-00001/relation-0-back/edge_features.npy"
    assert (tmp_path / "again" / name).read_bytes() == (divided / "parts" / name).read_bytes()
    build = read_typed_parts(divided / "parts").build
    assert read_typed_parts(tmp_path / "again").build == build
    assert read_typed_parts(divided / "other").build != build


def test_every_byte_has_a_checksum(divided, tmp_path):
    shutil.copytree(divided / "parts", tmp_path / "parts")
    files = sorted((tmp_path / "parts/part-00001").glob("*/*"))
    seen = {}
    verify_typed_part(tmp_path / "parts", 1, on_array=seen.__setitem__)
    arrays = {f"{one.parent.name}/{one.stem}" for one in files if one.suffix == ".npy"}
    assert seen.keys() == arrays
    for file in files:
        before = file.read_bytes()
        file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        with pytest.raises(StoreError, match=f"part-00001/{file.parent.name}"):
            verify_typed_part(tmp_path / "parts", 1)
        file.unlink()
        with pytest.raises(StoreError, match=f"part-00001/{file.parent.name}"):
            open_typed_part(tmp_path / "parts", 1)
        file.write_bytes(before)
    verify_typed_part(tmp_path / "parts", 1)


def test_a_part_of_another_build_is_named(divided, tmp_path):
    shutil.copytree(divided / "parts", tmp_path / "parts")
    for name in ("nodes-1", "relation-2"):
        own = tmp_path / "parts/part-00002" / name
        shutil.rmtree(own)
        shutil.copytree(divided / "other/part-00002" / name, own)
        with pytest.raises(StoreError, match=f"part-00002/{name}: part 2 is of another build"):
            open_typed_part(tmp_path / "parts", 2)
        shutil.rmtree(own)
        shutil.copytree(divided / "parts/part-00002" / name, own)
    open_typed_part(tmp_path / "parts", 2)


def change(path, value):
    """Sets one value in a tree of JSON."""

    def applied(values):
        at = values
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        return values

    return applied


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (change(["build"], "x"), "build must be 32 hex digits"),
        (change(["order"], "x"), "lacks a name, a build or a known order"),
        (change(["types"], []), "as many ranges as there are parts"),
        (change(["types"], 3), "must list types"),
        (change(["types", 0, "starts", 1], 99), "type 0 lacks a name or ranges"),
        (change(["types", 0, "starts", 1], -1), "a start of type 0 must be a count"),
        (change(["types", 0, "sha256"], []), "a checksum for each part"),
        (change(["relations", 0, "key", 0], "x"), "relation x:writes:paper is between types"),
        (change(["relations", 0, "key"], "writes"), "a relation lacks its key"),
        (change(["relations", 0, "num_edges"], "x"), "num_edges of relation author:writes:paper"),
        (change(["relations", 0, "undirected"], 1), "lacks undirected or weighted"),
        (change(["relations", 0, "sha256"], [[]]), "author:writes:paper lacks checksums"),
        (change(["relations", 0, "sha256", 1, 0], 5), "a checksum is no text"),
        (change(["relations", 0, "weighted"], True), "must list the arrays edge_features"),
    ],
)
def test_a_forged_manifest_is_refused(divided, tmp_path, changed, said):
    shutil.copytree(divided / "parts", tmp_path / "parts")
    file = tmp_path / "parts/typed-parts.json"
    file.write_text(json.dumps(changed(json.loads(file.read_text()))))
    with pytest.raises(StoreError, match=said):
        open_typed_part(tmp_path / "parts", 0)


def test_a_damaged_store_and_too_many_parts_leave_nothing(divided, tmp_path):
    with pytest.raises(StoreError, match="has 26 nodes, too few for 27 parts"):
        partition_store(divided / "store", out=tmp_path / "parts", parts=27, order="hash")
    shutil.copytree(divided / "store", tmp_path / "store")
    file = tmp_path / "store/relation-1/indices.npy"
    indices = np.load(file)
    indices[3] = 99
    np.save(file, indices)
    with pytest.raises(StoreError, match="relation-1: damaged"):
        partition_store(tmp_path / "store", out=tmp_path / "parts", parts=2, order="hash")
    with pytest.raises(StoreError, match="is in parts already"):
        partition_store(divided / "parts", out=tmp_path / "parts", parts=2, order="hash")
    assert [path.name for path in Path(tmp_path).iterdir()] == ["store"]


@pytest.mark.parametrize("order", ORDERS)
def test_the_graph_that_was_divided_comes_back_in_its_own_order(tmp_path, order):
    typed_graph(edges=60).save(tmp_path / "store")
    partition_store(tmp_path / "store", out=tmp_path / "parts", parts=3, order=order)
    before = Graph.open(tmp_path / "store")
    after = join_typed_parts(tmp_path / "parts", restored=True)
    for key, relation in before.relations.items():
        for name in ("indptr", "indices", "edge_weight", "edge_features", "edge_ids"):
            one, other = getattr(relation, name), getattr(after.relations[key], name)
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_array_equal(one, other)
    for name, nodes in before.nodes.items():
        one, other = ids_of(nodes), ids_of(after.nodes[name])
        assert one.tolist() == other.tolist()
    known = fingerprint((before,))
    assert read_typed_parts(tmp_path / "parts").source.fingerprint == known
    assert fingerprint((after,)) == known
