import json
import shutil

import numpy as np
import pytest

from graphcl import Graph
from graphcl.errors import RunError
from graphcl.graphs.schema import Schema
from graphcl.runs.files import Origin, RunConfig, read_embeddings, write_config, write_schema
from graphcl.runs.nodes import describe_nodes, read_nodes
from graphcl.runs.typed import read_preparations, run_types, type_folder, write_types


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
    write_schema(tmp_path, schema)
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
    assert read_preparations(run) == {}


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
