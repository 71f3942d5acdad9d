"""`graphcl report`, from a run to what a person sees."""

import base64
import json
import re
import zlib

import numpy as np
import pytest

from graphcl.cli.main import run
from tests.cli.conftest import QUICK, fails
from tests.reporting.conftest import unpack

QUICK_MAP = ["--map", "pca"]


def test_report_writes_one_page(trained, capsys):
    assert run(["report", "runs/mine", *QUICK_MAP, "--json"]) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert told["out"] == "runs/mine/report.html"
    assert told["nodes_on_map"] == 60
    page = (trained / "report.html").read_text()
    assert told["bytes"] == len(page.encode())
    score = json.loads((trained / "result.json").read_text())["probe"]["accuracy"]
    assert f"{100 * score:.1f} %" in page
    assert "Confusion matrix" in page
    assert run(["report", "runs/mine", *QUICK_MAP]) == 0  # its own file is replaced
    assert "60 nodes on the map" in capsys.readouterr().out
    assert (trained / "report.html").read_text() == page  # the same run, the same page


def embedded(page):
    """What the page's script knows of each node, by channel and id."""
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    ids = json.loads(zlib.decompress(base64.b64decode(data["ids"])))
    found = {}
    for one in data["channels"]:
        if one["kind"] == "category":
            names = [*one["names"], None]
            found[one["title"]] = dict(
                zip(ids, (names[code] for code in unpack(one["values"])), strict=True)
            )
    return found, [ids[place] for place in unpack(data["ranked"])]


def test_the_page_shows_what_the_commands_answered(trained, folder, capsys):
    """The ranked list is predict's, the groups are cluster's, and nothing is grouped anew."""
    report = ["report", "runs/mine", *QUICK_MAP, "--out", "x.html", "--overwrite", "--title"]
    assert run(["cluster", "runs/mine", "--count", "5", "--seed", "3", "--json"]) == 0
    groups = {row["id"]: row["group"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert run(["predict", "runs/mine", "--all", "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)["rows"]
    assert run([*report, "Whom <to> call", "--note", "First line.\nAsk <Ada>."]) == 0
    page = (folder / "x.html").read_text()
    found, ranked = embedded(page)
    assert found["group"] == {name: f"group {number}" for name, number in groups.items()}
    assert found["prediction"] == {row["id"]: str(row["label"]) for row in predicted}
    best = sorted(predicted, key=lambda row: -round(row["probability"], 3))
    shown = [row["probability"] for row in predicted]
    sure = dict(zip((row["id"] for row in predicted), shown, strict=True))
    assert [round(sure[name], 3) for name in ranked] == [round(r["probability"], 3) for r in best]
    assert "<title>Whom &lt;to&gt; call</title>" in page
    assert "<h1>Whom &lt;to&gt; call</h1>" in page
    assert "<p>First line.</p><p>Ask &lt;Ada&gt;.</p>" in page
    assert (
        page.index("To look at first") < page.index("How far to trust the") < page.index("Training")
    )
    assert page.count(">group 5 <") == 1


def test_without_answers_groups_are_those_that_cluster_would_give(trained, folder, capsys):
    assert run(["report", "runs/mine", *QUICK_MAP, "--out", "x.html"]) == 0
    found, ranked = embedded((folder / "x.html").read_text())
    assert ranked == []
    (trained / "answer-cluster.parquet").write_bytes(b"damaged")
    capsys.readouterr()
    assert run(["cluster", "runs/mine", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert found["group"] == {row["id"]: f"group {row['group']}" for row in told["rows"]}


def test_a_report_without_its_graph_says_so(trained, folder, capsys):
    (folder / "mine.npz").unlink()
    assert run(["report", "runs/mine", *QUICK_MAP, "--out", "x.html"]) == 0
    assert "continuing without the graph" in capsys.readouterr().err
    page = (folder / "x.html").read_text()
    assert "could not be read again: mine.npz: no such file" in page
    assert "Connected components" not in page
    assert "Confusion matrix" in page
    (trained / "nodes.npz").unlink()
    assert "has no node ids, and its graph cannot be read" in fails(
        capsys, "report", "runs/mine", *QUICK_MAP
    )


@pytest.mark.parametrize("keys", [("edge_index", "x"), ("edge_index", "x", "y")])
def test_a_report_without_labels_or_split(folder, capsys, arrays, keys):
    np.savez("bare.npz", **{key: arrays[key] for key in keys})
    assert run(["train", "bare.npz", *QUICK]) == 0
    assert run(["report", "runs/bare", *QUICK_MAP]) == 0
    page = (folder / "runs/bare/report.html").read_text()
    assert ("There is no probe score" in page) == ("y" not in keys)
    assert ("Confusion matrix" in page) == ("y" in keys)
    for text in (
        "Effective rank",
        "Mean cosine",
        "Connected components",
        "Groups",
        "No predictions are",
    ):
        assert text in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "absent"], "absent: no such run"),
        (["report", "runs/mine", "--out", "x.txt"], "must end in .html"),
        (["report", "runs/mine", "--out", "nowhere/x.html"], "does not exist"),
        (["report", "runs/mine", "--out", "taken.html"], "already exists"),
        (["report", "runs/mine", "--map", "tsne"], "map must be umap or pca; got 'tsne'"),
        (["neighbors", "absent", "x"], "absent: no such run"),
        (["neighbors", "runs/mine", "node 6l"], "no node has the id 'node 6l'; did you mean 'node"),
        (["neighbors", "runs/mine", "§§§"], "no node has the id '§§§'; ids look like 'node 0'"),
        (["neighbors", "runs/mine", "node 3", "-k", "0"], "Invalid value for '-k'"),
        (["neighbors", "runs/mine"], "Missing argument"),
        (["train", "mine.npz", "--out", "new", "--log", "paper"], "--log must be tensorboard"),
    ],
)
def test_bad_input(trained, folder, capsys, arguments, message):
    (folder / "taken.html").touch()
    before = sorted(path.name for path in folder.rglob("*"))
    assert message in fails(capsys, *arguments)
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_a_damaged_run_has_no_report(trained, capsys):
    (trained / "embeddings.npy").write_bytes(b"")
    assert "embeddings.npy: damaged" in fails(capsys, "report", "runs/mine", *QUICK_MAP)
    (trained / "embeddings.npy").unlink()
    assert "has no embeddings.npy" in fails(capsys, "neighbors", "runs/mine", "node 1")
    np.save(trained / "embeddings.npy", np.ones((7, 3), np.float32))
    assert "7 embeddings" in fails(capsys, "report", "runs/mine", *QUICK_MAP)
    assert "7 embeddings for 60 nodes" in fails(capsys, "neighbors", "runs/mine", "node 1")
    (trained / "result.json").write_text("{")
    assert "result.json: damaged" in fails(capsys, "report", "runs/mine", *QUICK_MAP)
