"""One part opens alone; a part that is missing, torn or of another build is named."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcl.errors import ParameterError, StoreError
from graphcl.store.header import is_parts, is_store, read_store
from graphcl.store.reader import open_part, verify_part
from graphcl.tabular.build import build_store
from tests.conftest import FUZZ, plain_part, random_graph
from tests.forging import stored
from tests.store.test_partition import typed_graph


@pytest.fixture
def folder(tmp_path):
    random_graph(num_nodes=50).save(tmp_path / "store")
    build_store(tmp_path / "store", out=tmp_path / "parts", parts=3, order="as-is")
    return tmp_path / "parts"


def test_a_part_opens_without_the_others(folder, tmp_path):
    graph = random_graph(num_nodes=50)
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in ("store.json", "part-00001"):
        (folder / name).rename(alone / name)
    part = plain_part(verify_part(alone, 1))
    assert (part.number, part.nodes) == (1, slice(17, 34))
    rows = slice(*graph.indptr[[17, 34]])
    np.testing.assert_array_equal(part.fields["indices"], graph.indices[rows])
    np.testing.assert_array_equal(part.fields["indptr"], graph.indptr[17:35] - graph.indptr[17])
    np.testing.assert_array_equal(part.fields["x"], graph.x[17:34])
    np.testing.assert_array_equal(part.fields["y"], graph.y[17:34])
    assert isinstance(part.fields["x"], np.memmap)
    with pytest.raises(StoreError, match=r"part-00002: part 2 of 3 is missing \(no part\.json\)"):
        open_part(alone, 2)
    with pytest.raises(ParameterError, match=r"part must be in \[0, 3\); got 3"):
        open_part(alone, 3)


def test_who_owns_a_node(folder, tmp_path):
    store = read_store(folder)
    (nodes,) = store.types.values()
    assert is_parts(folder)
    assert is_store(folder)
    assert is_store(tmp_path / "store")
    assert not is_parts(tmp_path / "store")
    assert (len(store), store.num_nodes, nodes.starts.tolist()) == (3, 50, [0, 17, 34, 50])
    expected = [part for part in range(3) for _ in range(50)[nodes.nodes(part)]]
    assert nodes.owner(np.arange(50)).tolist() == expected
    assert nodes.owner(33) == 1


def test_a_part_of_another_build_is_named(folder, tmp_path):
    build_store(tmp_path / "store", out=tmp_path / "other", parts=3, order="hash")
    shutil.rmtree(folder / "part-00002")
    shutil.copytree(tmp_path / "other/part-00002", folder / "part-00002")
    build, other = read_store(folder).build, read_store(tmp_path / "other").build
    wrong = f"part-00002: part 2 is of another build \\({other}\\); that of the whole is {build}"
    with pytest.raises(StoreError, match=wrong):
        open_part(folder, 2)
    open_part(folder, 0)
    shutil.rmtree(folder / "part-00001")
    shutil.copytree(folder / "part-00000", folder / "part-00001")
    with pytest.raises(StoreError, match=r"part-00001/part\.json: altered or damaged"):
        open_part(folder, 1)


def test_torn_and_altered_files_are_named(folder):
    file, where = stored(folder, "x"), r"part-00000/nodes-0/x\.npy"
    content = file.read_bytes()
    file.write_bytes(content[:-5])
    with pytest.raises(StoreError, match=f"{where}: damaged or truncated"):
        open_part(folder, 0)
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    open_part(folder, 0)
    with pytest.raises(StoreError, match=f"{where}: altered or damaged"):
        verify_part(folder, 0)
    file.unlink()
    with pytest.raises(StoreError, match=f"{where}: cannot be read"):
        open_part(folder, 0)
    about = folder / "part-00000/part.json"
    header = about.read_text()
    about.write_text(header.replace(json.loads(header)["arrays"]["nodes-0"]["x"][0], "0" * 64))
    with pytest.raises(StoreError, match=r"part\.json: altered or damaged"):
        open_part(folder, 0)
    about.write_text(header[:100])
    with pytest.raises(StoreError, match=r"part\.json: not JSON"):
        open_part(folder, 0)


def test_an_edge_may_lead_to_another_part_and_not_beyond_the_graph(folder):
    indices = np.lib.format.open_memmap(stored(folder, "indices", 2), mode="r+")
    assert indices.min() < 34
    open_part(folder, 2).check()
    indices[0] = 50
    indices.flush()
    with pytest.raises(StoreError, match="relation-0: indices holds 50; expected 0 to 49"):
        open_part(folder, 2).check()


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("typed")
    typed_graph().save(folder / "store")
    build_store(folder / "store", out=folder / "parts", parts=3, order="hash")
    return folder


def test_every_byte_has_a_checksum(typed, tmp_path):
    shutil.copytree(typed / "parts", tmp_path / "parts")
    files = sorted((tmp_path / "parts/part-00001").glob("*/*"))
    seen = {}
    verify_part(tmp_path / "parts", 1, on_array=seen.__setitem__)
    assert seen.keys() == {f"part-00001/{one.parent.name}/{one.stem}" for one in files}
    for file in files:
        before = file.read_bytes()
        file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        with pytest.raises(StoreError, match=f"part-00001/{file.parent.name}"):
            verify_part(tmp_path / "parts", 1)
        file.unlink()
        with pytest.raises(StoreError, match=f"part-00001/{file.parent.name}"):
            open_part(tmp_path / "parts", 1)
        file.write_bytes(before)
    verify_part(tmp_path / "parts", 1)


def change(path, value):
    """Sets one value in a tree of JSON."""

    def applied(values):
        at = values
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        return values

    return applied


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (change(["build"], "x"), "build must be 32 hex digits"),
        (change(["order"], "x"), "32 hex digits, and order one of"),
        (change(["types"], []), "at least one type"),
        (change(["types"], 3), "types must be a list, each an object; got 3"),
        (change(["types", 1, "name"], "author"), "at least one type, and each once"),
        (change(["types", 0, "starts", 1], 99), "type 0 lacks a range"),
        (change(["types", 0, "starts"], [0, 9]), "type 0 lacks a range"),
        (change(["types", 0, "starts", 1], -1), "type 0: starts must be a list, each a count"),
        (change(["types", 0, "class_names"], [3]), "class_names must be a list, each a text"),
        (change(["parts"], []), "must list 1 to 4096 parts"),
        (change(["parts", 1], 5), "parts must be a list, each a text"),
        (change(["parts", 0], "0" * 64), r"part\.json: altered or damaged"),
        (change(["relations", 0, "key", 0], "x"), "relation x:writes:paper is between types"),
        (change(["relations", 0, "key"], "writes"), "relation 0: key must be a list, each a text"),
        (
            change(["relations", 0, "num_edges"], "x"),
            "relation 0: num_edges must be a count",
        ),
        (change(["relations", 0, "undirected"], 1), "relation 0: undirected must be true or false"),
        (change(["relations", 0, "undirected"], True), "writes:paper cannot be undirected"),
        (change(["relations", 0, "both"], False), "lacks its edges by source"),
        (change(["relations", 0, "weighted"], True), "must have the arrays edge_features"),
        (change(["source", "beside"], {"../x": ""}), "names files that are none of a store"),
    ],
)
def test_a_forged_header_is_refused(typed, tmp_path, changed, said):
    shutil.copytree(typed / "parts", tmp_path / "parts")
    file = tmp_path / "parts/store.json"
    file.write_text(json.dumps(changed(json.loads(file.read_text()))))
    with pytest.raises(StoreError, match=said):
        open_part(tmp_path / "parts", 0)


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 60), st.text(max_size=5), st.just([]))
FREE = ("name", "num_edges", "cut_edges", "self_loops_removed", "class_names")


@FUZZ
@given(st.data())
def test_any_forged_header_is_refused_in_words(folder, data):
    values = json.loads((folder / "store.json").read_text())
    place = data.draw(st.sampled_from([values, values["types"][0], values["relations"][0]]))
    key = data.draw(st.sampled_from(sorted(place)))
    before, place[key] = place[key], data.draw(VALUES)
    text = (folder / "store.json").read_text()
    try:
        (folder / "store.json").write_text(json.dumps(values))
        same_kind = type(place[key]) is type(before) and key in FREE
        if place[key] == before or same_kind or key == "relations":
            return  # it may be right
        with pytest.raises((StoreError, ParameterError)):
            [open_part(folder, number) for number in range(3)]
    finally:
        (folder / "store.json").write_text(text)
