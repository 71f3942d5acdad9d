"""The folder that travels: what is in it, and that it can be loaded."""

import json
import re
import shutil

import numpy as np
import pytest
import safetensors.numpy

from graphcl.cli.main import run
from graphcl.errors import ParameterError, RunError
from graphcl.estimator.model import GraphCL
from graphcl.exporting.card import _plain, write_card
from graphcl.graphs.graph import Graph
from graphcl.run import Run
from tests.conftest import random_graph


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("card") / "cora"
    command = ["train", "cora", "--out", str(out), "--recipe", "default", "--set", "epochs=1"]
    assert run([*command, "--set", "dim=16", "--device", "cpu", "--quiet"]) == 0
    return out


def front_matter(text):
    """The card's head, without a YAML parser: keys, and lists of one level."""
    head = re.match(r"---\n(.*?)\n---\n", text, flags=re.DOTALL)[1]
    found, key = {}, ""
    for line in head.splitlines():
        if line.startswith("- "):
            found[key] = [*(found[key] or []), line[2:]]
        else:
            key, _, value = line.partition(": ")
            key = key.removesuffix(":")
            found[key] = value
    return found


def test_a_card_says_what_the_model_is(trained, tmp_path):
    write_card(tmp_path / "card", trained, licence="cc-by-4.0")
    text = (tmp_path / "card/README.md").read_text()
    head = front_matter(text)
    assert (head["license"], head["library_name"]) == ("cc-by-4.0", "graphcl")
    assert "graphcl" in head["tags"]
    result = json.loads((trained / "result.json").read_text())
    assert f"| accuracy | {result['probe']['accuracy']:.4f} |" in text
    for words in ("2,708 nodes", "Seed 0", "| `encoder` | `residual` |", "## Limits"):
        assert words in text
    assert str(trained) not in text
    config = json.loads((tmp_path / "card/config.json").read_text())
    assert (config["num_features"], config["hidden_size"]) == (1433, 16)
    assert config["recipe"]["dim"] == 16
    weights = safetensors.numpy.load_file(tmp_path / "card/model.safetensors")
    assert weights.keys() == safetensors.numpy.load_file(trained / "model.safetensors").keys()


def test_the_folder_is_loaded_like_a_run_and_names_no_path(trained, tmp_path):
    write_card(tmp_path / "card", trained)
    graph = random_graph(num_features=1433)
    ours, theirs = (GraphCL.load(path, device="cpu") for path in (trained, tmp_path / "card"))
    np.testing.assert_array_equal(ours.transform(graph), theirs.transform(graph))
    assert "graph =" not in (tmp_path / "card/config.toml").read_text()


def test_a_run_without_scores(tmp_path):
    graph = Graph.from_edge_index([[0, 1], [1, 2]], np.eye(3), name="a|b`c")
    GraphCL(epochs=1, dim=8, device="cpu").fit(graph).save(tmp_path / "run")
    write_card(tmp_path / "card", tmp_path / "run")
    text = (tmp_path / "card/README.md").read_text()
    assert "no labels to score" in text
    assert front_matter(text)["license"] == "unknown"


def test_what_is_there_is_kept(trained, tmp_path):
    for wrong in ("", "mit\nx: y", "my licence"):
        with pytest.raises(ParameterError, match="a short name"):
            write_card(tmp_path / "card", trained, licence=wrong)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(RunError):
            Run(trained).export("card", tmp_path / "other", overwrite=overwrite)


def test_a_name_keeps_its_underscores():
    assert _plain("my_graph") == "my_graph"
    assert _plain("_a_b_") == "\\_a_b\\_"  # at a word's edge it would be markup
    assert _plain("a|b`c<d>") == "abcd"


@pytest.mark.parametrize(
    ("folds", "said"), [(0, "test nodes, given split:"), (5, "each held out in one of 5 folds:")]
)
def test_two_classes_have_their_area(trained, tmp_path, folds, said):
    run_of = shutil.copytree(trained, tmp_path / "run")
    probe = {"accuracy": 0.9, "roc_auc": 0.8125, "macro_f1": 0.5, "split": "given", "folds": folds}
    (run_of / "result.json").write_text(json.dumps({"probe": probe, "graph": "not one"}))
    write_card(tmp_path / "card", run_of)
    text = (tmp_path / "card/README.md").read_text()
    assert "| roc_auc | 0.8125 |" in text
    assert said in text
    assert "It was trained on *a graph*." in text
