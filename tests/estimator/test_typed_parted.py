"""Three processes, each with a part of a typed graph, train the weights of one on the whole."""

import json
import shutil

import numpy as np
import pytest

from graphcl.distributed import ALONE, current_share
from graphcl.errors import GraphError, ParameterError, StoreError
from graphcl.estimator import GraphCL
from graphcl.estimator.parted import PartedData, fit_parts
from graphcl.graphs.graph import Graph
from graphcl.graphs.typed_partition import join_typed_parts
from graphcl.recipes import load_recipe
from graphcl.tabular.build import partition_store
from graphcl.training import sampled
from graphcl.training.part_checkpoints import PartCheckpoints
from tests.graphs.test_typed_partition import WRITES, typed_graph
from tests.groups import in_processes, same_figures

WORLD = 3
DEFAULT = {"dim": 12, "epochs": 2, "steps": 0, "batch_nodes": 32, "fan_out": 6}
PLAIN = {"side_by_side": False, "own_features": 0.0, "normalisation": "none", **DEFAULT}


def library(topics=4):
    """Weights, vectors, sparse features, a type without features."""
    return typed_graph(1, authors=40, papers=60, topics=topics, edges=150)


def simple():
    """Edges without weights and vectors can be mapped; a type that some parts lack."""
    graph = library(topics=2)
    edges = {key: one.edge_index() for key, one in graph.relations.items()}
    nodes = {"author": graph.nodes["author"].x, "paper": graph.nodes["paper"].x, "topic": 2}
    return Graph.from_edges(nodes, edges, name="simple")


# graph, order, recipe, how processes reach other parts
CASES = {
    "default": (library, "hash", DEFAULT, {}),
    "all": (library, "neighbours", PLAIN | {"contrast": "all", "layers": 3, "fan_out": 4},
            {"cache_bytes": 1 << 20}),
    "mapped": (simple, "hash", DEFAULT | {"contrast": "paper,author"}, {"cache_bytes": 2000}),
    "asked": (simple, "as-is", PLAIN | {"feature_scaling": "row", "contrast": "all"},
              {"topology": "asked"}),
    "cut": (library, "hash", PLAIN | {"steps": 7}, {"cache_bytes": 1 << 20}),
    "without": (library, "hash", PLAIN | {"sample_with_replacement": False}, {}),
}  # fmt: skip


def model_of(settings):
    return GraphCL(load_recipe("default").with_values(mode="sampled", **settings), device="cpu")


def figures(model):
    """All that a training leaves, by name."""
    found = {f"w/{name}": one.numpy() for name, one in model.encoder_.state_dict().items()}
    found["losses"] = np.array([one.loss for one in model.history_])
    return found


def trained(folder, case):
    _, _, settings, reach = CASES[case]
    data = PartedData(folder / f"{case}-{current_share().world}", **reach)
    model = fit_parts(model_of(settings), data)
    last = model.history_[-1]
    about = {"sent": last.sent_bytes, "hits": last.cache_hits or 0.0}
    return figures(model) | about | {"asked": "asked" in model.mode_.reason}


def process(share, folder):
    sampled.WINDOW = 2  # an epoch has more steps
    for case in CASES:
        np.savez(folder / f"{case}-{share.rank}.npz", **trained(folder, case))
    said = {}
    for name in ("torn", "default-1"):
        with pytest.raises(StoreError) as error:
            fit_parts(model_of(DEFAULT), PartedData(folder / name))
        said[name] = str(error.value)
    (folder / f"said-{share.rank}").write_text(json.dumps(said))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("typed")
    for case, (make, order, _, _) in CASES.items():
        make().save(folder / case)
        partition_store(folder / case, out=folder / f"{case}-{WORLD}", parts=WORLD, order=order)
    partition_store(folder / "default", out=folder / "default-1", parts=1, order="hash")
    shutil.copytree(folder / f"default-{WORLD}", folder / "torn")
    file = folder / "torn/part-00002/relation-2/indices.npy"
    file.write_bytes(file.read_bytes()[:-8])
    in_processes(WORLD, process, folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_one_process_on_the_whole_graph(folder, case):
    whole = join_typed_parts(folder / f"{case}-{WORLD}")
    expected = figures(model_of(CASES[case][2]).fit(whole))
    assert np.abs(np.diff(expected["losses"])).max() > 1e-3  # it learns something
    for rank in range(WORLD):
        found = np.load(folder / f"{case}-{rank}.npz")
        same_figures(found, expected, case)


def test_edges_are_mapped_where_they_can_be_and_a_cache_says_its_hits(folder):
    found = {case: np.load(folder / f"{case}-0.npz") for case in CASES}
    asked = {case for case, one in found.items() if one["asked"]}
    assert asked == {"default", "all", "asked", "cut", "without"}
    assert found["default"]["hits"] == 0 < found["mapped"]["hits"] < found["all"]["hits"]
    assert 0 < found["mapped"]["sent"] < found["asked"]["sent"]


def test_a_torn_part_and_a_wrong_number_of_parts_end_every_process(folder):
    said = {(folder / f"said-{rank}").read_text() for rank in range(WORLD)}
    assert len(said) == 1
    found = json.loads(said.pop())
    assert "part-00002/relation-2/indices.npy" in found["torn"]
    assert "pass --processes 1" in found["default-1"]


def test_one_process_that_was_stopped_goes_on(folder, tmp_path):
    assert current_share() == ALONE
    data = PartedData(folder / "default-1")
    expected = figures(fit_parts(model_of(DEFAULT), data))
    whole = figures(model_of(DEFAULT).fit(join_typed_parts(folder / "default-1")))
    for name, value in whole.items():
        np.testing.assert_allclose(expected[name], value, rtol=1e-3, atol=2e-5, err_msg=name)
    asked = iter([False, False, True])
    stopped = PartCheckpoints(tmp_path, stop=lambda: next(asked))
    with pytest.raises(Exception, match="epoch 1, step 3"):
        fit_parts(model_of(DEFAULT), data, checkpoints=stopped)
    again = fit_parts(model_of(DEFAULT), data, checkpoints=PartCheckpoints(tmp_path), resume=True)
    for name, value in figures(again).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.parametrize(
    ("settings", "error", "named"),
    [
        ({"mode": "full"}, ParameterError, "mode must be auto or sampled over parts"),
        ({"inductive": True}, ParameterError, "inductive must be false over parts"),
        ({"encoder": "mean"}, ParameterError, "a typed graph is encoded by 'residual'"),
        ({"contrast": "papers"}, ParameterError, "contrast: must be .* got 'papers'"),
        ({"exceptions": "reads.fan_out=2"}, GraphError, "no relation 'reads'"),
    ],
)
def test_what_typed_parts_do_not_allow_is_named(folder, settings, error, named):
    model = GraphCL(load_recipe("default").with_values(**DEFAULT | settings), device="cpu")
    with pytest.raises(error, match=named):
        fit_parts(model, PartedData(folder / "default-1"))


def test_a_graph_without_edges_is_refused(tmp_path):
    none = {WRITES: np.zeros((2, 0), int)}
    Graph.from_edges({"author": np.eye(3), "paper": np.eye(2)}, none).save(tmp_path / "none")
    partition_store(tmp_path / "none", out=tmp_path / "parts", parts=1, order="hash")
    with pytest.raises(GraphError, match="no relation has edges"):
        fit_parts(model_of(DEFAULT), PartedData(tmp_path / "parts"))
