"""One part opens alone; a part that is missing, torn or of another build is named."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcl.errors import ParameterError, StoreError
from graphcl.store.parts import is_parts, open_part, read_parts, verify_part
from graphcl.tabular.build import partition_store
from tests.conftest import FUZZ, random_graph


@pytest.fixture
def folder(tmp_path):
    graph = random_graph(num_nodes=50)
    graph.save(tmp_path / "store")
    partition_store(tmp_path / "store", out=tmp_path / "parts", parts=3, order="as-is")
    return tmp_path / "parts"


def test_a_part_opens_without_the_others(folder, tmp_path):
    graph = random_graph(num_nodes=50)
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in ("parts.json", "part-00001"):
        (folder / name).rename(alone / name)
    part = verify_part(alone, 1)
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


def test_who_owns_a_node(folder):
    parts = read_parts(folder)
    assert is_parts(folder)
    assert (len(parts), parts.num_nodes, parts.starts.tolist()) == (3, 50, [0, 17, 34, 50])
    expected = [part for part in range(3) for _ in range(50)[parts.nodes(part)]]
    assert parts.owner(np.arange(50)).tolist() == expected
    assert parts.owner(33) == 1


def test_a_part_of_another_build_is_named(folder, tmp_path):
    partition_store(tmp_path / "store", out=tmp_path / "other", parts=3, order="hash")
    shutil.rmtree(folder / "part-00002")
    shutil.copytree(tmp_path / "other/part-00002", folder / "part-00002")
    build, other = read_parts(folder).build, read_parts(tmp_path / "other").build
    wrong = f"part-00002: part 2 is of another build \\({other}\\); that of the whole is {build}"
    with pytest.raises(StoreError, match=wrong):
        open_part(folder, 2)
    open_part(folder, 0)
    shutil.rmtree(folder / "part-00001")
    shutil.copytree(folder / "part-00000", folder / "part-00001")
    with pytest.raises(StoreError, match=r"part-00001/part\.json: part must be 1; got 0"):
        open_part(folder, 1)


def test_torn_and_altered_files_are_named(folder):
    part = folder / "part-00000"
    content = (part / "x.npy").read_bytes()
    (part / "x.npy").write_bytes(content[:-5])
    with pytest.raises(StoreError, match=r"part-00000/x\.npy: damaged or truncated"):
        open_part(folder, 0)
    (part / "x.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    open_part(folder, 0)
    with pytest.raises(StoreError, match=r"part-00000/x\.npy: altered or damaged"):
        verify_part(folder, 0)
    (part / "x.npy").unlink()
    with pytest.raises(StoreError, match=r"part-00000/x\.npy: cannot be read"):
        open_part(folder, 0)
    header = (part / "part.json").read_text()
    (part / "part.json").write_text(header.replace("random", "chance"))
    with pytest.raises(StoreError, match=r"part\.json: altered or damaged"):
        open_part(folder, 0)
    (part / "part.json").write_text(header[:100])
    with pytest.raises(StoreError, match=r"part\.json: not JSON"):
        open_part(folder, 0)


def test_an_edge_may_lead_to_another_part_and_not_beyond_the_graph(folder):
    part = folder / "part-00002"
    indices = np.lib.format.open_memmap(part / "indices.npy", mode="r+")
    assert indices.min() < 34
    open_part(folder, 2).check()
    indices[0] = 50
    indices.flush()
    with pytest.raises(StoreError, match="part-00002: indices holds 50; expected 0 to 49"):
        open_part(folder, 2).check()


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 60), st.text(max_size=5), st.just([]))


@FUZZ
@given(st.data())
def test_a_forged_manifest_is_refused_in_words(folder, data):
    values = json.loads((folder / "parts.json").read_text())
    place = data.draw(st.sampled_from([values, *values["parts"]]))
    key = data.draw(st.sampled_from(sorted(set(place) - {"name", "num_nodes", "sha256"})))
    before, place[key] = place[key], data.draw(VALUES)
    text = (folder / "parts.json").read_text()
    try:
        (folder / "parts.json").write_text(json.dumps(values))
        if place[key] == before or (key in ("num_edges", "cut_edges") and type(place[key]) is int):
            return
        with pytest.raises((StoreError, ParameterError)):
            [open_part(folder, number) for number in range(3)]
    finally:
        (folder / "parts.json").write_text(text)
