"""A graph is opened in Python by the name or path that a command takes."""

import numpy as np
import pandas
import pytest

import graphcl
from graphcl.cli.main import run
from graphcl.errors import DatasetError
from graphcl.tabular.build import build_store
from tests.conftest import random_graph


def test_it_opens_what_the_command_line_takes(tmp_path):
    graph = random_graph()
    np.savez(tmp_path / "mine.npz", edge_index=graph.edge_index(), x=graph.x, y=graph.y)
    graph.save(tmp_path / "store")
    typed = graphcl.Graph.from_directed([[0, 1], [1, 2]], np.eye(3))
    typed.save(tmp_path / "typed")
    for opened in (
        graphcl.open_graph(tmp_path / "mine.npz"),
        graphcl.open_graph(str(tmp_path / "store")),
    ):
        assert (opened.indices == graph.indices).all()
        assert (opened.x == graph.x).all()
    assert graphcl.open_graph(tmp_path / "typed").num_edges == 2
    assert graphcl.open_graph("Cora").num_nodes == 2708


def test_a_list_of_edges_is_read_as_tables_are(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target,x\na,b,1\nb,c,2\n")
    path = str(tmp_path / "edges.csv")
    with pytest.raises(graphcl.GraphCLError) as one:
        graphcl.open_graph(path)
    with pytest.raises(graphcl.GraphCLError) as other:
        graphcl.read_tables(path)
    assert str(one.value) == str(other.value)


def test_arrays_that_are_not_used_are_said(tmp_path):
    np.savez(tmp_path / "odd.npz", edge_index=[[0], [1]], x=np.eye(2), edge_weigth=[1.0])
    with pytest.warns(UserWarning, match="did you mean 'edge_weight'"):
        graphcl.open_graph(tmp_path / "odd.npz")


def test_what_is_no_graph_is_refused(tmp_path):
    with pytest.raises(DatasetError, match=r"unknown dataset 'coar'.*did you mean 'cora'"):
        graphcl.open_graph("coar")
    random_graph().save(tmp_path / "store")
    build_store(tmp_path / "store", out=tmp_path / "parts", parts=2, order="hash")
    whole, again = random_graph(), graphcl.open_graph(tmp_path / "parts")
    assert np.array_equal(whole.x, again.x)
    assert np.array_equal(whole.indices, again.indices)
    (tmp_path / "notes.doc").touch()
    with pytest.raises(DatasetError, match=r"a graph file must be an .npz"):
        graphcl.open_graph(tmp_path / "notes.doc")


def test_a_run_is_no_graph_also_with_tables_of_answers(tmp_path, capsys):
    (tmp_path / "config.toml").write_text("")
    pandas.DataFrame({"source": ["a"], "target": ["b"]}).to_parquet(tmp_path / "answer.parquet")
    with pytest.raises(DatasetError, match="is a run; what is asked for is a graph"):
        graphcl.open_graph(tmp_path)
    assert run(["train", str(tmp_path)]) == 2
    assert "is a run" in capsys.readouterr().err
    assert run(["check", str(tmp_path)]) == 2
    assert "is a run, not a store" in capsys.readouterr().err
