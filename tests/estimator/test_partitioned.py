"""Processes with a part each, of graphs of any kind, train the weights of one on the whole."""

import json
import shutil

import numpy as np
import pytest
import scipy.sparse

from graphcl.distributed import ALONE, current_share
from graphcl.errors import GraphError, ParameterError, StoreError
from graphcl.estimator import fitting, partitioned
from graphcl.estimator.model import GraphCL
from graphcl.estimator.partitioned import PartitionedGraph
from graphcl.graphs.graph import Graph
from graphcl.graphs.schema import EDGES
from graphcl.partitioned import boundary, topology
from graphcl.partitioned.boundary import Wire
from graphcl.partitioned.features import READERS, FeatureRows, prepare_part
from graphcl.recipes import load_recipe
from graphcl.store.reader import open_part
from graphcl.tabular.build import build_store
from graphcl.training import sampled
from graphcl.training.checkpoints import Checkpoints
from tests.conftest import plain_part, random_graph
from tests.groups import in_processes, same_figures
from tests.kernels.test_adjacency_rows import with_weights
from tests.store.test_partition import WRITES, typed_graph

WORLDS = (2, 3)
NODES = 90
DEFAULT = {"dim": 24, "epochs": 2, "steps": 0, "batch_nodes": 32, "fan_out": 3}
PLAIN = {
    "encoder": "mean",
    "normalisation": "none",
    "side_by_side": False,
    "own_features": 0.0,
    "feature_scaling": "none",
    **DEFAULT,
}


def dense_graph():
    graph = random_graph(1, num_nodes=NODES)
    units = np.where(np.arange(graph.num_features) % 2, 100.0, 0.01)
    return graph.replace(x=(np.exp(graph.x) * units).astype(np.float32))


def wordy_graph():
    """Columns of words and of numbers."""
    random, graph = np.random.default_rng(0), random_graph(2, num_nodes=NODES)
    x = np.concatenate([random.random((NODES, 60)) < 0.2, graph.x], axis=1)
    return graph.replace(x=x.astype(np.float32))


def sparse_graph():
    graph = wordy_graph()
    return graph.replace(x=scipy.sparse.csr_array(np.maximum(graph.x, 0)))


def weighted_graph():
    return with_weights(random_graph(1, num_nodes=NODES))


def lonely_graph():
    """Most nodes have no edge, and some parts neither."""
    return Graph.from_edge_index([[0, 1], [1, 2]], random_graph(1, num_nodes=NODES).x)


def unscaled():
    return random_graph(1, num_nodes=NODES)


def library(topics=4):
    """Weights, vectors, sparse features, a type without features."""
    return typed_graph(1, authors=40, papers=60, topics=topics, edges=150)


def simple():
    """Edges without weights and vectors can be mapped; a type that some parts lack."""
    graph = library(topics=2)
    edges = {key: one.edge_index() for key, one in graph.relations.items()}
    nodes = {"author": graph.nodes["author"].x, "paper": graph.nodes["paper"].x, "topic": 2}
    return Graph.from_edges(nodes, edges, name="simple")


WITHOUT = {"sample_with_replacement": False}
TYPED = DEFAULT | {"dim": 12, "fan_out": 6}
BARE = {"side_by_side": False, "own_features": 0.0, "normalisation": "none", **TYPED}
# graph, features of the store, order, recipe, how processes reach other parts
CASES = {
    "default": (dense_graph, "float32", "neighbours", DEFAULT, {}),
    "as-is": (dense_graph, "float32", "as-is", DEFAULT, {"cache_bytes": 1 << 20}),
    "asked": (dense_graph, "float16", "hash", DEFAULT, {"topology": "asked"}),
    "small cache": (dense_graph, "float16", "hash", DEFAULT, {"cache_bytes": 300}),
    "asked, cached": (unscaled, "float32", "hash", PLAIN | WITHOUT,
                      {"topology": "asked", "cache_bytes": 1 << 20}),
    "words": (wordy_graph, "float16", "hash", DEFAULT, {"cache_bytes": 1 << 20}),
    "sparse": (sparse_graph, "float32", "neighbours", DEFAULT, {}),
    "row": (sparse_graph, "float32", "hash", PLAIN | {"feature_scaling": "row"}, {}),
    "weighted": (weighted_graph, "float32", "hash", DEFAULT, {}),
    "weighted, without": (weighted_graph, "float32", "neighbours", PLAIN | WITHOUT, {}),
    "residual": (unscaled, "float16", "hash", PLAIN | {"encoder": "residual", "layers": 3}, {}),
    "cut": (dense_graph, "float32", "hash", DEFAULT | {"steps": 4}, {"cache_bytes": 1 << 20}),
    "lonely": (lonely_graph, "float32", "as-is", PLAIN, {"topology": "asked"}),
    "typed": (library, "", "hash", TYPED, {}),
    "typed, all": (library, "", "neighbours",
                   BARE | {"contrast": "all", "layers": 3, "fan_out": 4, "epochs": 3},
                   {"cache_bytes": 1 << 20}),
    "typed, mapped": (simple, "", "hash", TYPED | {"contrast": "paper,author"},
                      {"cache_bytes": 2000}),
    "typed, asked": (simple, "", "as-is", BARE | {"feature_scaling": "row", "contrast": "all"},
                     {"topology": "asked"}),
    "typed, cut": (library, "", "hash", BARE | {"steps": 7}, {"cache_bytes": 1 << 20}),
    "typed, without": (library, "", "hash", BARE | WITHOUT, {}),
}  # fmt: skip
TYPES = [case for case in CASES if case.startswith("typed")]
RANGES = "ranges"  # embeddings are calibrated on some nodes alone
MODELS = {**CASES, RANGES: CASES["default"], "ranges, weighted": CASES["weighted"]}
# On two cores, three processes take three times as long as two. They train what differs with their
# number: each way to reach several others, parts without edges, parts that lack a type.
OF_THREE = ("default", "as-is", "asked", "small cache", "weighted, without", "lonely",
            "typed, mapped", RANGES)  # fmt: skip
OF_BOTH = ("default", "small cache", "lonely", "typed, mapped")


def cases(world):
    if world == 3:
        return OF_THREE
    return [case for case in MODELS if case in OF_BOTH or case not in OF_THREE]


def base_of(case):
    """The case whose graph and parts this one has."""
    return "default" if case == RANGES else case.removeprefix("ranges, ")


def model_of(settings):
    return GraphCL(load_recipe("default").replace(mode="sampled", **settings), device="cpu")


def figures(model):
    """All that a training leaves, by name."""
    found = {f"w/{name}": one.numpy() for name, one in model.encoder_.state_dict().items()}
    found["losses"] = np.array([one.loss for one in model.history_])
    if not isinstance(model.scaling_, str) and hasattr(model.scaling_, "tensors"):
        found |= {f"s/{name}": one.numpy() for name, one in model.scaling_.tensors().items()}
    return found


def small_ranges(patch):
    patch(fitting, "WHOLE", 20)
    patch(partitioned, "WHOLE", 20)
    patch(fitting, "NODES", 4)


def trained(folder, case):
    """Trains in this process's share; returns all figures, and what travelled."""
    share = current_share()
    _, _, _, settings, reach = MODELS[case]
    data = PartitionedGraph(folder / f"{base_of(case)}-{share.world}", **reach)
    model = model_of(settings).fit(data)
    last = model.history_[-1]
    about = {"sent": last.sent_bytes, "hits": last.cache_hits or 0.0}
    return figures(model) | about | {"asked": "asked" in model.mode_.reason}


def process(share, folder):
    with pytest.MonkeyPatch.context() as patch:  # other tests use this process after it
        _process(share, folder, patch.setattr)


def _process(share, folder, patch):
    patch(sampled, "WINDOW", 2)  # an epoch has three steps
    rank, world = share.rank, share.world
    for case in cases(world):
        if world == 3 or case in TYPES:
            patch(boundary, "PEER_BYTES", 300)  # rows travel in several rounds
        if case.startswith(RANGES):
            small_ranges(patch)
        np.savez(folder / f"{case}-{world}-{rank}.npz", **trained(folder, case))
    said = {}
    for name, data in {
        "torn": PartitionedGraph(folder / f"torn-{world}"),
        "few": PartitionedGraph(folder / f"default-{5 - world}"),
        "few, typed": PartitionedGraph(folder / f"typed, mapped-{5 - world}"),
        "torn, typed": PartitionedGraph(folder / f"torn-typed-{world}"),
    }.items():
        with pytest.raises(StoreError) as error:
            model_of(PLAIN).fit(data)
        said[name] = str(error.value)
    (folder / f"said-{world}-{rank}").write_text(json.dumps(said))


def tear(file):
    file.write_bytes(file.read_bytes()[:-8])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    for case, (make, features, order, _, _) in CASES.items():
        make().save(folder / case, **({"features": features} if features else {}))
        worlds = [world for world in WORLDS if case in map(base_of, cases(world))]
        for world in worlds + [1] * (case in ("default", "typed")):
            build_store(folder / case, out=folder / f"{case}-{world}", parts=world, order=order)
    for world in WORLDS:
        for name, case, relation in (("torn", "default", 0), ("torn-typed", "typed, mapped", 2)):
            torn = folder / f"{name}-{world}"
            shutil.copytree(folder / f"{case}-{world}", torn)
            tear(torn / f"part-0000{world - 1}/relation-{relation}/indices.npy")
    for world in WORLDS:
        in_processes(world, process, folder)
    return folder


def whole_of(folder, case, world):
    """The graph in the numbering of the parts."""
    _, features, order, _, _ = MODELS[case]
    base = base_of(case)
    if case in TYPES:
        return Graph.open(folder / f"{base}-{world}", restored=False)
    joined = folder / f"joined-{base}-{world}"
    if not joined.exists():
        Graph.open(folder / f"{base}-{world}", restored=False).save(joined, features=features)
    return Graph.open(folder / base if order == "as-is" else joined)


@pytest.mark.parametrize(
    ("case", "world"), [(case, world) for world in WORLDS for case in cases(world)]
)
def test_weights_are_those_of_one_process_on_the_whole_graph(folder, case, world, monkeypatch):
    if case.startswith(RANGES):
        small_ranges(monkeypatch.setattr)
    expected = figures(model_of(MODELS[case][3]).fit(whole_of(folder, case, world)))
    assert np.abs(np.diff(expected["losses"])).max() > 1e-3  # it learns something
    first, *others = (np.load(folder / f"{case}-{world}-{rank}.npz") for rank in range(world))
    same_figures(first, expected, case)
    for other in others:
        for name in expected:
            np.testing.assert_array_equal(other[name], first[name], err_msg=name)


def test_a_cache_saves_bytes_and_says_its_hits(folder):
    for names in (("default", "small cache", "as-is"), ("typed", "typed, mapped", "typed, all")):
        world = 2 if names[0] in TYPES else 3
        hits = [np.load(folder / f"{case}-{world}-0.npz")["hits"] for case in names]
        assert hits[0] == 0 < hits[1] < hits[2]
    found = {case: np.load(folder / f"{case}-2-0.npz") for case in TYPES}
    asked = {case for case in TYPES if found[case]["asked"]}
    assert asked == set(TYPES) - {"typed, mapped"}  # others have weights, or are asked for
    assert 0 < found["typed, mapped"]["sent"] < found["typed, asked"]["sent"]
    plain = np.load(folder / "asked-3-0.npz")
    assert plain["hits"] == 0 < plain["sent"]


@pytest.mark.parametrize("world", WORLDS)
def test_a_part_that_is_torn_and_a_wrong_number_of_parts_end_every_process(folder, world):
    said = {(folder / f"said-{world}-{rank}").read_text() for rank in range(world)}
    assert len(said) == 1
    found = json.loads(said.pop())
    assert f"part-0000{world - 1}/relation-0/indices.npy" in found["torn"]
    assert f"part-0000{world - 1}/relation-2/indices.npy" in found["torn, typed"]
    assert f"has {5 - world} parts" in found["few"]
    assert f"has {5 - world} parts" in found["few, typed"]


PYG = {"encoder": "gcn", "normalisation": "none", "side_by_side": False, "own_features": 0.0}


@pytest.mark.parametrize(
    ("case", "settings", "error", "named"),
    [
        ("default", {"mode": "full"}, ParameterError, "mode must be auto or sampled over parts"),
        ("typed", {"mode": "full"}, ParameterError, "mode must be auto or sampled over parts"),
        ("default", {"inductive": True}, ParameterError, "inductive must be false over parts"),
        ("default", PYG, ParameterError, "encoder and perturbation"),
        (
            "typed",
            {"encoder": "mean"},
            ParameterError,
            "encoder must be 'residual', once per relation",
        ),
        ("typed", {"contrast": "papers"}, ParameterError, "contrast: must be .* got 'papers'"),
        ("typed", {"overrides": "reads.fan_out=2"}, GraphError, "no relation 'reads'"),
    ],
)
def test_what_parts_do_not_allow_is_named(folder, case, settings, error, named):
    model = GraphCL(load_recipe("default").replace(**DEFAULT | settings), device="cpu")
    with pytest.raises(error, match=named):
        model.fit(PartitionedGraph(folder / f"{case}-1"))
    with pytest.raises(ParameterError, match="topology must be one of auto, asked"):
        PartitionedGraph(folder / "default-1", topology="guessed")


def test_a_graph_without_edges_is_refused(tmp_path):
    none = {WRITES: np.zeros((2, 0), int)}
    Graph.from_edges({"author": np.eye(3), "paper": np.eye(2)}, none).save(tmp_path / "none")
    build_store(tmp_path / "none", out=tmp_path / "parts", parts=1, order="hash")
    with pytest.raises(GraphError, match="no relation has edges"):
        model_of(DEFAULT).fit(PartitionedGraph(tmp_path / "parts"))


@pytest.mark.parametrize("case", ["default", "typed"])
def test_one_process_with_one_part_trains_the_same_and_goes_on_if_stopped(folder, tmp_path, case):
    assert current_share() == ALONE
    settings, data = CASES[case][3], PartitionedGraph(folder / f"{case}-1")
    whole = figures(model_of(settings).fit(whole_of(folder, case, 1)))
    expected = figures(model_of(settings).fit(data))
    for name, value in whole.items():
        np.testing.assert_allclose(expected[name], value, rtol=1e-3, atol=2e-5, err_msg=name)
    asked = iter([False, False, True])
    stopped = Checkpoints(tmp_path, every_host=True, stop=lambda: next(asked))
    with pytest.raises(Exception, match="epoch 1, step 3"):
        model_of(settings).fit(data, checkpoints=stopped)
    again = model_of(settings).fit(data, checkpoints=tmp_path, resume=True)
    for name, value in figures(again).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_maps_that_leave_no_room_for_the_training_are_not_read_ahead(tmp_path, monkeypatch):
    """The kernel would read megabytes around each row, and drop rows that are still needed."""
    random_graph(num_nodes=NODES).save(tmp_path / "store")
    build_store(tmp_path / "store", out=tmp_path / "parts", parts=1, order="as-is")
    part = boundary.open_any_part(tmp_path / "parts", 0)
    prepared = prepare_part(part, "none", ALONE, Wire(ALONE))
    (edges,) = prepared.part.edges.values()
    mapped = prepared.nodes["node"].fields["x"], edges["indices"]
    size = sum(one.nbytes for one in mapped)
    for free, expected in ((1.5 * size, 2), (2.5 * size, 0)):
        advised = []
        monkeypatch.setattr(topology, "free_memory_bytes", lambda free=free: int(free))
        monkeypatch.setattr(topology, "advise_random_reads", lambda *a, to=advised: to.extend(a))
        given = {"fan_outs": {EDGES: 3}, "replace": True}
        found = topology.PartsTopology(prepared, Wire(ALONE), **given)
        assert len(advised) == expected
        assert found.from_disk == bool(expected)


def test_rows_that_several_threads_read_are_the_same(tmp_path):
    random_graph(num_nodes=NODES).save(tmp_path / "store")
    build_store(tmp_path / "store", out=tmp_path / "parts", parts=1, order="as-is")
    part = plain_part(open_part(tmp_path / "parts", 0))
    draw = np.random.default_rng(0)
    for scaling in ("none", "row", "unit"):
        one, several = (FeatureRows(part, Wire(ALONE), scaling, from_disk=x) for x in (False, True))
        for count in (0, 1, READERS - 1, READERS, READERS + 1, NODES):
            nodes = draw.choice(NODES, count, replace=False)
            found, expected = several.fetch(nodes), one.fetch(nodes)
            np.testing.assert_array_equal(found.values, part.fields["x"][nodes])
            assert (found.row_divisor is None) == (scaling == "none")
            if scaling != "none":
                np.testing.assert_array_equal(found.row_divisor, expected.row_divisor)
