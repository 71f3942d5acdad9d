"""Shards appear together, with ids, or not at all."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from graphcl.cli.embed import _embed_parts
from graphcl.cli.main import run
from graphcl.distributed import ALONE
from graphcl.errors import GraphError, RunError, StoreError
from graphcl.estimator.model import GraphCL
from graphcl.partitioned.embeddings import ends_digest, open_shards, read_parts_nodes
from graphcl.partitioned.shards import check_shards_folder, suffix_of, whole_shards, write_shard
from graphcl.runs.files import weights_digest
from graphcl.store.header import read_store
from graphcl.tabular.build import build_store
from tests.conftest import random_graph
from tests.groups import command, free_port


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run, its store, and the store in one part and in two."""
    folder = tmp_path_factory.mktemp("made")
    graph = random_graph(num_nodes=80)
    graph.save(folder / "store")
    GraphCL("default", epochs=2, dim=8, device="cpu").fit(graph).save(folder / "run")
    for parts in (1, 2):
        build_store(folder / "store", out=folder / f"in-{parts}", parts=parts, order="hash")
    assert (
        run(["embed", str(folder / "run"), str(folder / "store"), "--out", f"{folder}/z.npy"]) == 0
    )
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_process_embeds_one_part(made, here, capsys):
    _embed_parts(made / "run", made / "in-1", Path("shards"), node_type=None, as_json=True)
    about = json.loads(capsys.readouterr().out)
    parts = read_store(made / "in-1")
    assert (about["nodes"], about["shards"], about["build"]) == (80, 1, parts.build)
    ids = np.load(made / "in-1/part-00000/nodes-0/rows.npy")
    shard, z = np.load("shards/part-00000.npy"), np.load(made / "z.npy")
    np.testing.assert_allclose(shard, z[ids], rtol=1e-4, atol=1e-5)
    said = json.loads(Path("shards/shards.json").read_text())
    (one,) = said["shards"]
    assert (one["file"], one["start"], one["stop"]) == ("part-00000.npy", 0, 80)
    assert one["bytes"] == Path("shards/part-00000.npy").stat().st_size
    assert one["ends"] == ends_digest(Path("shards/part-00000.npy"))
    assert (said["build"], said["dim"]) == (parts.build, z.shape[1])
    assert said["model"] == weights_digest(made / "run")
    arguments = ["embed", f"{made}/run", f"{made}/in-2", "--out", "shards"]
    assert run(arguments) == 2
    assert "already holds a folder of embeddings" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["shards"]


def test_two_processes_write_two_shards_with_ids(made, here):
    code, _, err = command("embed", f"{made}/run", f"{made}/in-2", "--out", "shards.parquet")
    assert code == 0, err
    table = pyarrow.parquet.read_table(
        ["shards.parquet/part-00000.parquet", "shards.parquet/part-00001.parquet"]
    )
    found = dict(zip(table["id"].to_pylist(), table["embedding"].to_pylist(), strict=True))
    z = np.load(made / "z.npy")
    assert sorted(found) == list(range(80))
    np.testing.assert_allclose([found[node] for node in range(80)], z, rtol=1e-4, atol=1e-5)
    assert [path.name for path in here.iterdir()] == ["shards.parquet"]
    shards = open_shards(Path("shards.parquet"))
    assert shards.node_ids().tolist() == table["id"].to_pylist()
    np.testing.assert_array_equal(shards[:], table["embedding"].to_pylist())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "in-2: has 2 parts, one for each process; got 1 process: pass --processes 2"),
        (["--device", "cuda"], "--device must be cpu for a store in parts"),
        (["--label", "y"], "GRAPH must be tables if table options are given"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_left(made, here, capsys, options, message):
    assert run(["embed", f"{made}/run", f"{made}/in-2", "--out", "shards", *options]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert list(here.iterdir()) == []


def test_other_features_and_torn_parts_are_refused(made, here):
    random_graph(num_features=5).save("narrow")
    build_store(Path("narrow"), out=Path("parts"), parts=1, order="as-is")
    given = made / "run", Path("parts"), Path("shards")
    with pytest.raises(GraphError, match="parts: has 5 features; the model was trained on 12"):
        _embed_parts(*given, node_type=None, as_json=False)
    shutil.rmtree("parts/part-00000")
    with pytest.raises(StoreError, match="part 0 of 1 is missing"):
        _embed_parts(*given, node_type=None, as_json=False)
    assert not Path("shards").exists()


def test_a_shard_that_cannot_be_written_leaves_nothing(made, here):
    def full(_):
        raise OSError(28, "No space left on device")

    def attempt():
        with whole_shards(Path("shards"), ALONE) as folder:
            write_shard(folder, ".npy", read_store(made / "in-1").types["node"], ALONE, 8, full)

    with pytest.raises(StoreError, match=r"part 0: its shard cannot be written \(No space"):
        attempt()
    assert list(here.iterdir()) == []
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("years")
    with pytest.raises(RunError, match="not part of a folder of embeddings"):
        check_shards_folder(Path("mine"), overwrite=True)


def test_a_folder_is_named_after_what_it_holds():
    assert [suffix_of(Path(name)) for name in ("z.parquet", "z.csv", "z", "z.npy")] == [
        ".parquet",
        ".csv",
        ".npy",
        ".npy",
    ]


@pytest.mark.usefixtures("forked")
def test_processes_that_were_started_one_by_one_find_each_other(made, here):
    """As on hosts of their own: no torchrun, ranks and the meeting place are in the environment."""
    words = [sys.executable, "-m", "graphcl", "embed", f"{made}/run", f"{made}/in-2"]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen(
            [*words, "--out", "shards"], env=os.environ | group | {"RANK": str(rank)}, **options
        )
        for rank in (1, 0)
    ]
    said = [process.communicate(timeout=200) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert (said[0][0], "80 embeddings in 2 shards" in said[1][0]) == ("", True)
    ids = read_parts_nodes(made / "in-2").node_ids
    z = np.load(made / "z.npy")
    np.testing.assert_allclose(open_shards(Path("shards"))[:], z[ids], rtol=1e-4, atol=1e-5)
