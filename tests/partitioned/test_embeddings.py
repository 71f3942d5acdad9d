"""Shards read like the array that they are pieces of; a set that is not whole is refused."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcl.errors import RunError, StoreError
from graphcl.exporting import vectors as writing
from graphcl.graphs.graph import Graph
from graphcl.partitioned import embeddings
from graphcl.partitioned.embeddings import (
    check_same_build,
    ends_digest,
    open_shards,
    read_parts_nodes,
)
from graphcl.store.columns import Names
from graphcl.tabular.build import build_store
from tests.conftest import FUZZ, random_graph

NODES, DIM = 50, 6
Z = np.random.default_rng(0).normal(size=(NODES, DIM)).astype(np.float32)
TEXTS = np.array([f"knoten {row} ü" for row in range(NODES)], dtype=object)


def make_shards(folder, z, starts, suffix, ids=None, **about):
    """Writes a set of shards as `graphcl embed` does, without the processes."""
    folder.mkdir()
    listed = []
    for number, (start, stop) in enumerate(itertools.pairwise(starts)):
        file = folder / f"part-{number:05d}{suffix}"
        names = None if ids is None else ids[start:stop]
        first = start if ids is None else 0
        writing.write_embeddings(file, z[start:stop], names, first=first)
        place = {"file": file.name, "start": int(start), "stop": int(stop)}
        listed.append(place | {"bytes": file.stat().st_size, "ends": ends_digest(file)})
    values = {"graphcl_shards": 1, "name": "g", "build": "b" * 32, "model": ""} | about
    values |= {"num_nodes": len(z), "dim": z.shape[1], "shards": listed}
    (folder / "shards.json").write_text(json.dumps(values))
    return folder


@pytest.fixture(params=[".npy", ".parquet"])
def folder(tmp_path, request, monkeypatch):
    monkeypatch.setattr(
        writing.batches, "__kwdefaults__", {**writing.batches.__kwdefaults__, "rows": 7}
    )  # several groups of rows in a file
    monkeypatch.setattr(embeddings, "_GATHERED", 4)
    return make_shards(tmp_path / f"z{request.param}", Z, [0, 20, 23, 50], request.param)


@given(data=st.data())
@FUZZ
def test_rows_are_those_of_the_array(folder, data):
    shards = open_shards(folder)
    assert (shards.shape, shards.ndim, len(shards)) == (Z.shape, 2, NODES)
    row = st.integers(-NODES, NODES - 1)
    kinds = st.one_of(
        row,
        st.slices(NODES),
        st.lists(row, max_size=30).map(lambda rows: np.array(rows, np.int64)),
        st.lists(st.booleans(), min_size=NODES, max_size=NODES).map(np.array),
    )
    rows = data.draw(kinds)
    found = shards[rows]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, Z[rows])


def test_the_whole_table_is_an_array(folder):
    np.testing.assert_array_equal(np.asarray(open_shards(folder)), Z)
    for wrong in (np.array([50]), np.ones(3, bool)):
        with pytest.raises(IndexError):
            open_shards(folder)[wrong]


def test_ids_are_in_parquet_alone(tmp_path, folder):
    numbers = open_shards(folder).node_ids()
    assert (numbers is None) == (folder.suffix == ".npy")
    if numbers is not None:
        assert numbers.tolist() == list(range(NODES))
    text = make_shards(tmp_path / "t", Z, [0, 9, 50], folder.suffix, TEXTS)
    names = open_shards(text).node_ids()
    assert names is None if folder.suffix == ".npy" else list(names) == TEXTS.tolist()


def test_joined_names():
    several = [Names.of(["a", ""]), Names.of([]), Names.of(["Zoë", "b"])]
    assert list(Names.joined(several)) == ["a", "", "Zoë", "b"]


def change(folder, what):
    described = json.loads((folder / "shards.json").read_text())
    what(described)
    (folder / "shards.json").write_text(json.dumps(described))


def sum_again(folder):
    """Writes the sums of the files as they are now."""

    def sums(described):
        for one in described["shards"]:
            file = folder / one["file"]
            one.update(bytes=file.stat().st_size, ends=ends_digest(file))

    change(folder, sums)


def test_a_missing_shard_is_named(folder):
    file = folder / f"part-00001{folder.suffix}"
    file.unlink()
    with pytest.raises(RunError, match=rf"{file.name}: shard 1 of 3 is missing"):
        open_shards(folder)


@pytest.mark.parametrize("sums", [True, False])
def test_a_torn_shard_is_named(folder, sums):
    file = folder / f"part-00002{folder.suffix}"
    file.write_bytes(file.read_bytes()[:-9])
    if not sums:
        sum_again(folder)
    said = "torn: has" if sums else "(truncated|not a readable shard)"
    with pytest.raises(RunError, match=rf"{file.name}: .*{said}"):
        open_shards(folder)


def test_a_shard_of_another_set_is_refused(folder, tmp_path):
    other = make_shards(tmp_path / "other", 2 * Z, [0, 20, 23, 50], folder.suffix)
    file = f"part-00000{folder.suffix}"
    shutil.copy(other / file, folder / file)
    with pytest.raises(RunError, match=r"part-00000.*(not the shard that was written with|torn)"):
        open_shards(folder)
    longer = make_shards(tmp_path / "longer", Z, [0, 25, 28, 50], folder.suffix)
    shutil.copy(longer / file, folder / file)
    sum_again(folder)
    with pytest.raises(RunError, match=r"part-00000.*holds .*; shards.json says"):
        open_shards(folder)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda d: d.update(graphcl_shards=2), "format 2; this version reads format 1"),
        (lambda d: d.update(shards=[]), "must list 1 to"),
        (lambda d: d.update(dim="6"), "dim must be a count; got 6"),
        (lambda d: d.update(num_nodes=51), "its shards have 50 rows; num_nodes is 51"),
        (lambda d: d["shards"][1].update(start=21), "shard 1 does not follow the one before"),
        (lambda d: d["shards"][1].update(file="../x.npy"), "shard 1 does not follow"),
        (lambda d: d["shards"][0].update(file="part-00000.csv"), "has .csv shards"),
        (lambda d: d["shards"].insert(0, 7), "shards must be a list, each an object"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(folder, what, message):
    change(folder, what)
    with pytest.raises(RunError, match=message):
        open_shards(folder)


def test_what_is_no_set_of_shards(tmp_path):
    with pytest.raises(RunError, match="none: no such folder of embeddings"):
        open_shards(tmp_path / "none")
    with pytest.raises(RunError, match=r"not a folder of embeddings in shards \(it has no shards"):
        open_shards(tmp_path)
    Path(tmp_path / "shards.json").write_text("{")
    with pytest.raises(RunError, match="not JSON"):
        open_shards(tmp_path)


@pytest.mark.parametrize("text", [True, False])
def test_they_are_those_of_the_whole_graph(tmp_path, text):
    graph = random_graph()
    if text:
        names = np.array([f"n {row} é" for row in range(60)])
        graph = graph.replace(node_ids=names)
    graph.save(tmp_path / "store")
    build_store(tmp_path / "store", out=tmp_path / "parts", parts=3, order="hash")
    nodes, whole = (
        read_parts_nodes(tmp_path / "parts"),
        Graph.open(tmp_path / "parts", restored=False),
    )
    assert nodes.num_nodes == 60
    assert list(nodes.node_ids) == list(whole.node_ids)
    assert nodes.y.tolist() == whole.y.tolist()
    assert nodes.degree.tolist() == np.diff(whole.indptr).tolist()
    masks = (whole.train_mask, whole.val_mask, whole.test_mask)
    assert (
        nodes.split_codes.tolist()
        == sum(k * m.astype(int) for k, m in enumerate(masks, 1)).tolist()
    )


def test_a_bare_graph_and_one_that_is_not_there(tmp_path):
    Graph.from_edge_index([[0, 1], [1, 2]], np.eye(4)).save(tmp_path / "store")
    build_store(tmp_path / "store", out=tmp_path / "parts", parts=2, order="as-is")
    nodes = read_parts_nodes(tmp_path / "parts")
    assert (nodes.node_ids, nodes.y, nodes.split_codes) == (None, None, None)
    assert nodes.degree.tolist() == [1, 2, 1, 0]
    with pytest.raises(StoreError, match="no such store"):
        read_parts_nodes(tmp_path / "none")
    shards = open_shards(make_shards(tmp_path / "z", np.eye(4, dtype=np.float32), [0, 4], ".npy"))
    with pytest.raises(RunError, match=r"embeddings of the build bbb.*; .*parts has the build"):
        check_same_build(shards, nodes)
