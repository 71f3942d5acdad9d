import json

import numpy as np
import pytest

from graphcl.answers.linking import links
from graphcl.cli.main import run
from graphcl.estimator.model import GraphCL
from graphcl.runs.files import read_answers
from graphcl.settings import LINKS_BY
from tests.cli.conftest import fails


def test_missing_links_pairs_and_files(trained, graph, capsys):
    assert run(["links", "runs/mine", "-k", "5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["rows"]) == 5
    edges = {tuple(pair) for pair in graph.edge_index().T.tolist()}
    z, model = np.load(trained / "embeddings.npy"), GraphCL.load(trained, device="cpu")
    expected = links(z, graph=graph, model=model, k=5)
    assert told["by"] == "model"
    for row, score, why in zip(told["rows"], expected.scores, expected.why, strict=True):
        u, v = (int(row[end].split()[1]) for end in ("source", "target"))
        assert (u, v) not in edges
        assert row["score"] == pytest.approx(float(score), abs=1e-5)
        assert row["why"] == why
    kept = read_answers(trained)["links"]["best"][0]
    assert [kept[name] for name in ("source", "why")] == [
        told["rows"][0][name] for name in ("source", "why")
    ]
    command = ["links", "runs/mine", "--node", "node 3", "--node", "node 9", "-k", "2"]
    assert run(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "the 4 most likely missing links of 2 nodes"
    assert lines[1] == "score\tsource\ttarget\twhy"
    assert lines[2].split("\t")[1] == "node 3"
    assert run([*command, "--out", "found.csv"]) == 0
    assert "found.csv: 4 rows" in capsys.readouterr().out
    assert run(["links", "runs/mine", "--pairs", "found.csv", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 4


def test_an_evaluation_stands_beside_simple_scores(trained, capsys):
    assert run(["links", "runs/mine", "--evaluate", "--negatives", "20", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["scores"]) == [*LINKS_BY, "features"]
    assert told["negatives"] == 20
    assert run(["links", "runs/mine", "-k", "3"]) == 0  # the evaluation stays
    assert read_answers(trained)["links"]["evaluation"]["held_out"] == told["held_out"]
    capsys.readouterr()
    assert run(["links", "runs/mine", "--evaluate", "--negatives", "5"]) == 0
    text = capsys.readouterr().out
    assert "Adamic–Adar" in text
    assert "removed before training, each ranked among 5 pairs that are not linked" in text
    assert len(read_answers(trained)["links"]["best"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--node", "nobody"], "no node has the id 'nobody'"),
        (["-k", "0"], "-k must be at least 1"),
        (["--node", "node 1", "--evaluate"], "must be one of them"),
        (["--evaluate", "--out", "x.csv"], "--out must be left out with --evaluate"),
        (["--evaluate", "--share", "2"], "share must be in (0, 1)"),
        (["--pairs", "absent.csv"], "absent.csv: no such file"),
        (["--pairs", "odd.csv"], "odd.csv: links: no node has the id 'x'"),
    ],
)
def test_bad_input(trained, capsys, arguments, message):
    (trained.parents[1] / "odd.csv").write_text("source,target\nx,y\n")
    assert message in fails(capsys, "links", "runs/mine", *arguments)


def test_nothing_lacks_a_link(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    full, pair = np.triu_indices(5, 1), np.array([[0, 2], [1, 3]])
    for name, edges in (("full", full), ("pairs", pair)):
        np.savez(f"{name}.npz", edge_index=edges, x=np.eye(edges[1].max() + 1))
        command = ["train", f"{name}.npz", "--set", "epochs=1", "--set", "dim=4", "--device", "cpu"]
        assert run([*command, "--out", f"runs/{name}"]) == 0
    capsys.readouterr()
    for node, of in ([], "the graph"), (["--node", "3"], "1 node"):
        assert run(["links", "runs/full", *node]) == 0
        told = capsys.readouterr()
        assert told.out == f"every pair of {of} is already linked\n"
        assert "too little" not in told.err
    assert "every pair is already linked" in fails(capsys, "links", "runs/full", "--evaluate")
    assert run(["links", "runs/pairs", "--by", "adamic_adar"]) == 0
    assert capsys.readouterr().out == "no missing link of the graph has common neighbours\n"


def test_links_by_the_edges_alone(trained, graph, capsys):
    assert run(["links", "runs/mine", "--by", "adamic_adar", "-k", "5", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    expected = links(None, graph=graph, k=5, by="adamic_adar")
    assert [row["score"] for row in rows] == pytest.approx(expected.scores.tolist(), rel=1e-5)
    assert "--by must be one of model, embeddings" in fails(
        capsys, "links", "runs/mine", "--by", "luck"
    )
