import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import RunError
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.schema import Schema
from graphcl.runs.files import Origin, RunConfig, read_embeddings, write_config, write_object
from graphcl.runs.nodes import (
    NODES,
    describe_nodes,
    read_nodes,
    run_types,
    trained_tables,
    type_folder,
    write_nodes,
    write_types,
)
from graphcl.store.reader import MASKS
from tests.forging import Hostile, described, npy, refused, zipped

AWKWARD = ["a b", "", "Zoë", "日本", "</script>", "line\nbreak", "tab\t", "🦀", "x" * 300, "0"]


def table(ids, degree, y=None, split=None, **more):
    masks = {} if split is None else {mask: split == code for code, mask in enumerate(MASKS, 1)}
    return Nodes("node", len(ids), y=y, node_ids=ids, degree=degree, **masks, **more)


def test_text_ids_labels_and_split_come_back(tmp_path):
    n = len(AWKWARD)
    y, split = np.arange(n) - 1, np.arange(n) % 4
    write_nodes(tmp_path, table(np.array(AWKWARD), np.arange(n), y, split))
    nodes = read_nodes(tmp_path)
    assert nodes.ids.tolist() == AWKWARD
    assert nodes.degree.tolist() == list(range(n))
    assert nodes.y.tolist() == y.tolist()
    assert nodes.split_codes.tolist() == split.tolist()


@pytest.mark.parametrize("ids", [np.array([7, 2**60, -1]), np.array([0.5, 1.0, 2.0])])
def test_numbers_stay_numbers(tmp_path, ids):
    write_nodes(tmp_path, table(ids, np.zeros(3, int)))
    nodes = read_nodes(tmp_path)
    assert nodes.ids.tolist() == ids.tolist()
    assert nodes.y is nodes.split_codes is None


def test_other_ids_are_kept_as_their_text(tmp_path):
    ids = np.empty(2, dtype=object)
    ids[:] = [(0, 1), "plain"]
    write_nodes(tmp_path, table(ids, np.zeros(2, int)))
    assert read_nodes(tmp_path).ids.tolist() == ["(0, 1)", "plain"]


@settings(deadline=None, max_examples=40)
@given(names=st.lists(st.text(), min_size=1, max_size=20))
def test_any_text_comes_back(tmp_path_factory, names):
    folder = tmp_path_factory.mktemp("run")
    ids = np.empty(len(names), dtype=object)
    ids[:] = names
    write_nodes(folder, table(ids, np.zeros(len(names), int)))
    assert read_nodes(folder).ids.tolist() == names


def test_nothing_there_and_damage(tmp_path):
    assert read_nodes(tmp_path) is None
    write_nodes(tmp_path, table(np.arange(50), np.arange(50)))
    whole = (tmp_path / NODES).read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"no zip at all", whole[:100] + whole[140:]):
        (tmp_path / NODES).write_bytes(damaged)
        with pytest.raises(RunError, match=r"nodes\.npz: not a readable"):
            read_nodes(tmp_path)
    np.savez(tmp_path / NODES, ids=np.arange(3), degree=np.arange(4))
    with pytest.raises(RunError, match="differ in length"):
        read_nodes(tmp_path)
    np.savez(tmp_path / NODES, ids=np.array([{}], dtype=object), degree=np.arange(1))
    with pytest.raises(RunError, match="pickled objects, which are never read"):
        read_nodes(tmp_path)


def test_large_class_numbers_come_back(tmp_path):
    y = np.array([-1, 2**31, 2**40])
    write_nodes(tmp_path, table(np.arange(3), np.zeros(3, int), y))
    assert read_nodes(tmp_path).y.tolist() == y.tolist()


def test_names_of_classes_and_several_labels_come_back(tmp_path):
    labels = np.array([[1, 0], [0, 1], [-1, -1]])
    nodes = table(np.arange(3), np.zeros(3, int), class_names=("Zoë", ""), y=labels)
    write_nodes(tmp_path, nodes)
    again = read_nodes(tmp_path)
    assert again.class_names == ("Zoë", "")
    assert again.y.tolist() == labels.tolist()
    assert [again.class_name(number) for number in (0, 1, 2)] == ["Zoë", "", "class 2"]
    np.savez(tmp_path / NODES, ids=np.arange(3), degree=np.arange(3), labels=np.ones((2, 2)))
    with pytest.raises(RunError, match="differ in length"):
        read_nodes(tmp_path)


def hidden_calls(path):
    np.savez(path, degree=np.array([Hostile()], dtype=object))


def swollen(path):
    zipped(path, degree=npy(header=described("<i4", (10**12,))))


def of_other_lengths(path):
    np.savez(path, degree=np.zeros(60, np.int32), ids=np.arange(7))


def ends_beyond(path):
    far = np.full(60, 2**40)
    np.savez(path, degree=np.zeros(60, np.int32), id_bytes=np.full(9, 255, np.uint8), id_ends=far)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("make", [hidden_calls, swollen, of_other_lengths, ends_beyond])
@pytest.mark.parametrize("command", [["neighbors", "model", "0"], ["report", "model"]])
def test_nodes(make, command, model, capsys, bounded):
    np.save(model / "embeddings.npy", np.ones((60, 8), np.float32))
    make(model / "nodes.npz")
    refused(command, capsys, "nodes.npz: ")


@pytest.fixture
def graph():
    nodes = {
        "../evil name": {"num_nodes": 3, "node_ids": ["x", "y", "z"]},
        "b": {"x": np.eye(4, dtype=np.float32), "y": [0, 1, 1, -1], "class_names": ("u", "v")},
    }
    relations = {
        ("../evil name", "to", "b"): np.array([[0, 0, 1], [1, 2, 2]]),
        ("b", "likes", "b"): {"edge_index": np.array([[0, 1], [1, 2]]), "undirected": True},
    }
    return Graph.from_edges(nodes, relations)


@pytest.fixture
def run(tmp_path, graph):
    schema = Schema.of(graph).to_json()
    write_object(tmp_path / "schema.json", schema)
    write_types(tmp_path, graph, {"../evil name": np.zeros((3, 2)), "b": np.ones((4, 2))})
    return tmp_path


def test_each_type_has_a_folder_within_the_run(run):
    assert run_types(run) == ["../evil name", "b"]
    folders = [type_folder(run, name) for name in run_types(run)]
    assert all(folder.parent == run / "types" and folder.is_dir() for folder in folders)
    assert read_embeddings(folders[1]).shape == (4, 2)
    nodes = read_nodes(folders[0])
    assert nodes.ids.tolist() == ["x", "y", "z"]
    assert read_nodes(folders[1]).class_names == ("u", "v")
    assert read_nodes(folders[1]).y.tolist() == [0, 1, 1, -1]
    (run / "config.toml").write_text(RunConfig({}, seed=0).to_toml())
    assert trained_tables(run) is None


def test_a_degree_counts_edges_of_all_relations_in_both_directions(graph):
    assert describe_nodes(graph, "../evil name").degree.tolist() == [2, 1, 0]
    assert describe_nodes(graph, "b").degree.tolist() == [1, 3, 3, 0]


def test_unknown_types_and_damage_are_told(run, tmp_path):
    with pytest.raises(RunError, match="no type 'c'; its types: "):
        type_folder(run, "c")
    (tmp_path / "plain").mkdir()
    assert run_types(tmp_path / "plain") == []
    with pytest.raises(RunError, match="plain graph, which has no types"):
        type_folder(tmp_path / "plain", "b")
    for damage in ({"types": 5}, {"types": [{"nom": 1}]}, {"relations": []}, {"types": [3]}):
        (run / "schema.json").write_text(json.dumps(damage))
        with pytest.raises(RunError, match="damaged"):
            run_types(run)


def test_a_plain_graph_has_the_names_of_its_store(tmp_path):
    nodes, edges = {"author": {"x": np.eye(3)}}, {"edge_index": [[0], [1]], "undirected": True}
    Graph.from_edges(nodes, {("author", "knows", "author"): edges}).save(tmp_path / "store")
    run = tmp_path / "run"
    run.mkdir()
    write_config(run, RunConfig({"epochs": 1}, seed=0, origin=Origin(str(tmp_path / "store"))))
    assert type_folder(run, "author") == run
    with pytest.raises(RunError, match="plain graph, which has no types; got 'node'"):
        type_folder(run, "node")
    shutil.rmtree(tmp_path / "store")
    assert type_folder(run, "node") == run
