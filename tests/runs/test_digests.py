"""Checksums of a run's files: damage is named where it is read, and by `check`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import graphcl
from graphcl.cli.main import run as command
from graphcl.errors import RunError
from graphcl.runs.digests import DIGESTS, add_digests, check_files, read_digests
from tests.conftest import random_graph


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("digests")
    graph = random_graph()
    model = graphcl.GraphCL(dim=8, epochs=1, device="cpu").fit(graph)
    model.save(place / "run", graph=graph)
    run = graphcl.Run(place / "run", device="cpu")
    run.update(edges=[(0, 40)])
    return place


@pytest.fixture
def run(made, tmp_path):
    shutil.copytree(made / "run", tmp_path / "run")
    return tmp_path / "run"


def flip(file):
    """Changes one bit in the middle of a file, as a disk does."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink()  # versions share files
    file.write_bytes(content)


def test_every_file_but_those_of_the_graph_has_a_checksum(run):
    files = {one.relative_to(run).as_posix() for one in run.rglob("*") if one.is_file()}
    own = {name for name in files if not name.startswith(("graph/", "versions/"))}
    assert set(read_digests(run)) == own - {DIGESTS}
    check_files(run)
    check_files(run / "versions/1")


@pytest.mark.parametrize("asked", ["cluster", "neighbors", "links", "predict", "report"])
def test_a_flipped_bit_in_the_embeddings_is_said_by_what_reads_them(run, asked, capsys):
    flip(run / "versions/1/embeddings.npy")
    words = {"neighbors": ["0"], "predict": ["--all"], "report": ["--map", "pca"]}
    assert command([asked, str(run), *words.get(asked, [])]) == 2
    said = capsys.readouterr().err
    assert "versions/1/embeddings.npy: altered or damaged (its checksum differs)" in said
    assert "Traceback" not in said


def test_a_part_of_the_embeddings_is_read_without_the_rest(run):
    flip(run / "versions/1/embeddings.npy")
    assert graphcl.Run(run).embeddings.shape == (60, 8)
    assert graphcl.Run(run / "versions/1").nodes().num_nodes == 60
    with pytest.raises(RunError, match="altered or damaged"):
        graphcl.Run(run).rows()


@pytest.mark.parametrize(
    "file",
    [
        "embeddings.npy",
        "model.safetensors",
        "nodes.npz",
        "config.toml",
        "graph/part-00000/nodes-0/x.npy",
        "versions/1/embeddings.npy",
        "versions/1/graph/part-00000/relation-0/indices.npy",
    ],
)
def test_check_compares_all_that_decides_an_answer(run, file, capsys):
    assert command(["check", str(run), "--json"]) == 0
    name = file.removesuffix(".npy") if "graph/" in file else file  # of a store, arrays are named
    assert json.loads(capsys.readouterr().out)["bytes"][name] == (run / file).stat().st_size
    text = (run / file).read_bytes()
    (run / file).unlink()
    (run / file).write_bytes(text + b"\n" if file == "config.toml" else text)
    if file != "config.toml":
        flip(run / file)
    assert command(["check", str(run)]) == 2
    assert f"{run / file}: altered or damaged" in capsys.readouterr().err
    (run / file).unlink()
    assert command(["check", str(run)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_files_that_versions_share_are_hashed_once(made):
    first, second = made / "run", made / "run/versions/1"
    assert (first / "model.safetensors").samefile(second / "model.safetensors")
    same = read_digests(first)["model.safetensors"]
    assert read_digests(second)["model.safetensors"] == same


def test_what_is_added_later_is_compared_too(run):
    np.save(run / "more.npy", np.arange(3))
    add_digests(run, [run / "more.npy"])
    flip(run / "more.npy")
    with pytest.raises(RunError, match=r"more\.npy: altered"):
        check_files(run)


@pytest.mark.parametrize("text", ["[", "[1]", '{"../x": "y"}', '{"/x": "y"}', '{"x": 1}'])
def test_a_damaged_list_is_refused(tmp_path, text):
    (tmp_path / DIGESTS).write_text(text)
    with pytest.raises(RunError, match=r"digests\.json: damaged"):
        read_digests(tmp_path)
    assert read_digests(Path(tmp_path / "none")) == {}
