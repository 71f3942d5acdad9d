"""Three processes, each with one part: their embeddings are those of the whole typed graph."""

import dataclasses

import numpy as np
import pytest
import torch

from graphcl.distributed import ALONE
from graphcl.embedding import embed_graph
from graphcl.errors import GraphError, RunError, StoreError
from graphcl.estimator.fitted import Components
from graphcl.exporting.vectors import write_embeddings
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import prepare, prepare_like
from graphcl.partitioned import boundary, inference
from graphcl.partitioned.boundary import Wire, open_own_part
from graphcl.partitioned.embeddings import open_shards, read_parts_nodes, shard_types, type_shards
from graphcl.partitioned.features import prepare_part, prepare_part_like
from graphcl.partitioned.inference import embed_part
from graphcl.partitioned.shards import whole_shards, write_typed_shards
from graphcl.recipes import load_recipe
from graphcl.runs.nodes import describe_nodes
from graphcl.store import partition
from graphcl.tabular.build import build_store
from tests.groups import in_processes
from tests.store.test_partition import CITES, WRITES, typed_graph

WORLD = 3
CPU = torch.device("cpu")


def library():
    """Topics get the means of their papers' words; weights, vectors, a type that parts lack."""
    return typed_graph(1, authors=40, papers=60, topics=2, edges=150)


def bare():
    """No type has features: all get their structure."""
    graph = library()
    nodes = {name: dataclasses.replace(one, x=None) for name, one in graph.nodes.items()}
    return Graph(nodes, graph.relations, "bare")


def chain():
    """Only authors have features: papers get theirs, and topics those of papers."""
    graph = library()
    nodes = dict(graph.nodes)
    nodes["paper"] = dataclasses.replace(nodes["paper"], x=None)
    return Graph(nodes, graph.relations, "chain")


def lonely():
    """A few edges, a relation without any, and a type without relations."""
    random = np.random.default_rng(0)
    x = {"author": random.normal(size=(20, 3)), "paper": random.normal(size=(30, 2)), "alone": 4}
    return Graph.from_edges(x, {WRITES: [[0, 1], [2, 2]], CITES: np.zeros((2, 0), int)})


SIDE = {"side_by_side": True, "own_features": 0.4}
# graph, order, recipe
CASES = {
    "auto": (library, "hash", {"feature_scaling": "auto", **SIDE}),
    "row": (library, "neighbours", {"feature_scaling": "row", "layers": 3, "side_by_side": False}),
    "bare": (bare, "hash", {"feature_scaling": "auto"}),
    "chain": (chain, "as-is", {"feature_scaling": "none", "side_by_side": False}),
    "lonely": (lonely, "as-is", {"feature_scaling": "none"}),
}


def recipe_of(case):
    return load_recipe("default").replace(dim=12, encoder="residual", **CASES[case][2])


def embedded(folder, case, share):
    part = open_own_part(folder / f"{case}-{share.world}", share)
    recipe, wire = recipe_of(case), Wire(share)
    prepared = prepare_part(part, recipe.feature_scaling, share, wire)
    encoder = Components(recipe).new_encoder(prepared.schema, seed=3)
    z = embed_part(encoder, prepared, share=share)
    again = prepare_part_like(part, prepared.schema, prepared.scaling, wire)
    for name, rows in embed_part(encoder, again, share=share).items():
        assert np.array_equal(rows, z[name])
    return prepared, z


def process(share, folder):
    with pytest.MonkeyPatch.context() as patch:  # other tests use this process after it
        patch.setattr(boundary, "ROUND_BYTES", 4096)  # several rounds
        patch.setattr(inference, "BLOCK_ROWS", 16)
        patch.setattr(partition, "BLOCK_BYTES", 512)
        _write_cases(share, folder)


def _write_cases(share, folder):
    for case in CASES:
        prepared, z = embedded(folder, case, share)
        np.savez(folder / f"{case}-{share.rank}.npz", **z)
        parts, nodes = prepared.part.store, prepared.part.nodes
        for suffix in (".npy", ".parquet"):
            writes = {name: shard_writer(nodes[name], z[name]) for name in z}
            with whole_shards(folder / f"{case}{suffix}", share) as staging:
                write_typed_shards(staging, suffix, parts, share, 12, writes)
    try:
        open_own_part(folder / "torn", share)
    except StoreError as error:
        (folder / f"said-{share.rank}").write_text(str(error))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("typed")
    for case, (make, order, _) in CASES.items():
        make().save(folder / case)
        for world in (1, WORLD):
            build_store(folder / case, out=folder / f"{case}-{world}", parts=world, order=order)
    build_store(folder / "auto", out=folder / "torn", parts=WORLD, order="hash")
    (folder / "torn/part-00002/relation-0/indices.npy").unlink()
    in_processes(WORLD, process, folder)
    return folder


def shard_writer(part, rows):
    ids = part.fields.get("node_ids")
    return lambda path: write_embeddings(
        path, rows, ids, first=part.nodes.start if ids is None else 0
    )


def whole_of(folder, case, world):
    graph, recipe = Graph.open(folder / f"{case}-{world}", restored=False), recipe_of(case)
    (prepared,) = prepare([graph], recipe.feature_scaling)
    encoder = Components(recipe).new_encoder(prepared.schema, seed=3)
    z = embed_graph(encoder, prepared.graph, device=CPU, feature_scaling=prepared.scaling)
    return prepared, z


@pytest.mark.parametrize("case", CASES)
def test_shards_are_the_embeddings_of_the_whole_graph(folder, case):
    """Equal to the order of sums in float32."""
    _, expected = whole_of(folder, case, WORLD)
    shards = [np.load(folder / f"{case}-{rank}.npz") for rank in range(WORLD)]
    for name, rows in expected.items():
        found = np.concatenate([shard[name] for shard in shards])
        assert np.abs(rows).max() > 0.01
        np.testing.assert_allclose(found, rows, rtol=1e-5, atol=1e-6, err_msg=name)
        for suffix in (".npy", ".parquet"):
            table = open_shards(type_shards(folder / f"{case}{suffix}", name))
            assert np.array_equal(table[:], found)
            ids = table.node_ids()
            if suffix == ".parquet":
                known = read_parts_nodes(folder / f"{case}-{WORLD}", name)
                numbers = np.arange(len(rows))
                expected_ids = numbers if known.node_ids is None else known.node_ids
                assert list(map(str, ids)) == list(map(str, expected_ids))


@pytest.mark.parametrize("case", CASES)
def test_nodes_of_a_type_have_the_degrees_of_all_relations(folder, case):
    graph = Graph.open(folder / f"{case}-{WORLD}", restored=False)
    for name in graph.nodes:
        found = read_parts_nodes(folder / f"{case}-{WORLD}", name)
        expected = describe_nodes(graph, name)
        assert np.array_equal(found.degree, expected.degree)
        assert (found.y is None) == (expected.y is None)
    with pytest.raises(RunError, match="has no type 'x'"):
        read_parts_nodes(folder / f"{case}-{WORLD}", "x")


def test_shards_of_several_types_are_named(folder):
    path = folder / "auto.npy"
    assert shard_types(path) == ["author", "paper", "topic"]
    with pytest.raises(RunError, match=r"several types, in its folders type-0 \(author\), type-1"):
        open_shards(path)
    with pytest.raises(RunError, match="no embeddings of the type 'x'; it has author, paper"):
        type_shards(path, "x")


@pytest.mark.parametrize("case", CASES)
def test_one_process_prepares_and_embeds_the_same(folder, case):
    whole, expected = whole_of(folder, case, 1)
    prepared, found = embedded(folder, case, ALONE)
    assert prepared.schema == whole.schema
    for name, tensor in whole.scaling.tensors().items():
        np.testing.assert_allclose(prepared.scaling.tensors()[name], tensor, rtol=1e-6)
    assert prepared.scaling.nodes.keys() == whole.scaling.nodes.keys()
    for name, rows in expected.items():
        np.testing.assert_allclose(found[name], rows, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_part_of_other_types_is_refused_and_one_that_lacks_some_is_embedded(folder):
    part = open_own_part(folder / "lonely-1", ALONE)
    whole, _ = whole_of(folder, "auto", 1)
    with pytest.raises(GraphError, match="knows no type 'alone'"):
        prepare_part_like(part, whole.schema, whole.scaling, Wire(ALONE))
    graph = library()
    nodes = {name: graph.nodes[name] for name in ("author", "paper")}
    few = Graph(nodes, {WRITES: graph.relations[WRITES]})
    few.save(folder / "few")
    build_store(folder / "few", out=folder / "few-1", parts=1, order="as-is")
    encoder = Components(recipe_of("auto")).new_encoder(whole.schema, seed=3)
    like = prepare_like(few, whole.schema, whole.scaling).graph
    expected = embed_graph(encoder, like, device=CPU, feature_scaling=whole.scaling)
    part = open_own_part(folder / "few-1", ALONE)
    prepared = prepare_part_like(part, whole.schema, whole.scaling, Wire(ALONE))
    found = embed_part(encoder, prepared, share=ALONE)
    for name, rows in expected.items():
        np.testing.assert_allclose(found[name], rows, rtol=1e-5, atol=1e-6)


def test_a_torn_part_ends_every_process_with_its_name(folder):
    said = {(folder / f"said-{rank}").read_text() for rank in range(WORLD)}
    assert len(said) == 1
    assert "part-00002/relation-0/indices.npy: cannot be read" in said.pop()
