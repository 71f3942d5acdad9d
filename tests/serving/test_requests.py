"""Bodies of requests: what is understood, what is refused and with which status."""

import contextlib
import io
import json
import time

import numpy as np
import pyarrow
import pyarrow.ipc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcl.serving.requests import ARROW, AT_ONCE, JSON, Asked, AskedError, Bounds, Reader
from tests.conftest import FUZZ

BOUNDS = Bounds(nodes=5, neighbours=4, k=7)
TAKES = ("ids", "new", "pairs", "k")


def asked(value, kind=JSON, takes=TAKES):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Reader({"asked": takes}, BOUNDS, features=3)("asked", body, kind)


def stream(columns, options=None):
    table = pyarrow.table(columns)
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_ids_count_as_their_text():
    found = asked({"ids": [7, "7", "ä"], "k": 3})
    assert (found.ids, found.k) == (["7", "7", "ä"], 3)
    assert asked({"pairs": [[1, "b"]]}).pairs == [["1", "b"]]


def test_a_large_body_is_read_like_a_small_one():
    body = json.dumps({"ids": ["a", 7]}).encode()
    assert asked(body).ids == asked(body + b" " * (AT_ONCE + 1)).ids == ["a", "7"]


@pytest.mark.parametrize(
    "body",
    [
        {"ids": [0.1] * 300_000},
        {"new": [{"features": {str(row): "a" for row in range(300_000)}}]},
        {"new": [{"features": [1, 2, 3], "neighbors": [None] * 300_000}]},
        {str(row): row for row in range(300_000)},
        {"new": [{str(row): row for row in range(300_000)}]},
    ],
    ids=["ids", "features", "neighbors", "keys", "keys of a node"],
)
def test_of_many_faults_one_is_looked_for(body):
    """Bodies of a few megabytes; a list of all their faults would take seconds and gigabytes."""
    body = json.dumps(body).encode()
    began = time.process_time()
    with pytest.raises(AskedError) as error:
        asked(body)
    assert time.process_time() - began < 1.5
    assert len(str(error.value)) < 200


def test_new_nodes():
    node = {"features": [1, 2.5, 3], "neighbors": ["a", 2], "weights": [1, 0.5]}
    some = {"features": {"2": 9}, "weights": []}
    found = asked({"new": [node, some], "edges": [[0, 1]]}, "application/json; charset=utf-8").new
    assert found.features.tolist() == [[1, 2.5, 3], [0, 0, 9]]
    assert (found.neighbours, found.weights) == ([["a", "2"], []], [[1.0, 0.5], []])
    assert found.edges == [[0.0, 1.0]]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON: expected value at line 1 column 1"),
        (b'{"ids": ["\xff"]}', 400, "not JSON: invalid unicode"),
        (b'{"ids": [1,]}', 400, "line 1 column 12"),
        (b"[1]", 400, "object"),
        (b"[" * 10_000, 400, "recursion limit"),
        (b"[" * 10_001, 413, "10000 lists and objects"),
        (b'{"ids": [' + b"9" * 5000 + b"]}", 400, "number out of range"),
        (b'{"ids": [' + b" " * 70_000 + b"9" * 5000 + b"]}", 400, "number out of range"),
        (b'{"ids": [' + b" " * 70_000 + b"NaN]}", 400, "not JSON: expected value"),
        (b'{"new": [{"features": [NaN, 0, 0]}]}', 400, "not JSON: expected value"),
        (b'{"ids": [5], "ids": [6]}', 400, "a key is given twice"),
        (b'{"new": [{"features": [1e999, 0, 0]}]}', 400, "0.features.0: Input should be a finite"),
        (b'{"new": [{"features": [1e300, 0, 0]}]}', 400, "float32"),
        ({"new": [{"features": [10**400, 0, 0]}]}, 400, "valid number"),
        ({}, 400, "one of"),
        ({"ids": ["a"], "pairs": [["a", "b"]]}, 400, "one of"),
        ({"ids": []}, 400, "ids: List should have at least 1 item, not 0"),
        ({"ids": "abc"}, 400, "ids: Input should be a valid list"),
        ({"ids": None}, 400, "list"),
        ({"ids": [True]}, 400, "text or a whole number"),
        ({"ids": [1.5]}, 400, "text or a whole number"),
        ({"ids": [None]}, 400, "text or a whole number"),
        ({"ids": ["a"] * 6}, 413, "ids: List should have at most 5 items, not 6"),
        ({"ids": ["a" * 5000]}, 413, "4096"),
        ({"ids": ["a"], "k": 0}, 400, "k: Input should be"),
        ({"ids": ["a"], "k": 8}, 400, "k: Input should be"),
        ({"ids": ["a"], "k": True}, 400, "k: Input should be"),
        ({"ids": ["a"], "path": "/etc/passwd"}, 400, "unknown key 'path'"),
        ({"ids": ["a"], "edges": [[0, 1]]}, 400, "edges are of new"),
        ({"pairs": [["a"]]}, 400, "pairs.0: List should have at least 2 items"),
        ({"pairs": [["a", "b", "c"]]}, 413, "at most 2 items"),
        ({"new": [[1, 2, 3]]}, 400, "new.0: Input should be an object"),
        ({"new": [{"neighbors": []}]}, 400, "new.0: must have features or columns"),
        (
            {"new": [{"features": [1, 2]}]},
            400,
            "features: List should have at least 3 items, not 2",
        ),
        ({"new": [{"features": [1, 2, 3, 4]}]}, 413, "at most 3 items"),
        ({"new": [{"features": ["a", 2, 3]}]}, 400, "features.0: Input should be a valid number"),
        ({"new": [{"features": {"3": 1}}]}, 400, "0 to 2"),
        ({"new": [{"features": {"-1": 1}}]}, 400, "0 to 2"),
        ({"new": [{"features": {"0": 1, "00": 2}}]}, 400, "0 to 2"),
        ({"new": [{"features": {"٣": 1}}]}, 400, "0 to 2"),
        ({"new": [{"features": [1, 2, 3], "x": 1}]}, 400, "unknown key 'x'"),
        ({"new": [{"features": [1, 2, 3], "neighbours": []}]}, 400, "did you mean 'neighbors'"),
        (
            {"new": [{"features": [1, 2, 3], "neighbors": ["a"] * 5}]},
            413,
            "neighbors: List should have at most 4 items",
        ),
        (
            {"new": [{"features": [1, 2, 3]}], "edges": [[0]]},
            400,
            "edges.0: List should have at least 2",
        ),
        ({"new": [{"features": [1, 2, 3]}], "edges": [[0, 1], [0, 1, 2]]}, 400, "all with"),
        ({"new": [{"features": {}, "weights": []}, {"features": {}}]}, 400, "all new nodes"),
    ],
)
def test_what_is_not_understood_is_refused(body, status, words):
    with pytest.raises(AskedError, match=words) as error:
        asked(body)
    assert error.value.status == status


def test_an_address_refuses_keys_that_it_does_not_know():
    with pytest.raises(AskedError, match="unknown key 'pairs'"):
        asked({"pairs": [["a", "b"]]}, takes=("ids", "new"))
    for kind in ("", "text/plain", "application/x-www-form-urlencoded"):
        with pytest.raises(AskedError) as error:
            asked({"ids": ["a"]}, kind)
        assert error.value.status == 415


def test_arrow_says_the_same_as_json():
    assert asked(stream({"id": ["a", "b"]}), ARROW).ids == ["a", "b"]
    assert asked(stream({"id": [1, 2]}), ARROW).ids == ["1", "2"]
    pairs = stream({"source": ["a"], "target": ["b"]})
    assert asked(pairs, ARROW).pairs == [["a", "b"]]
    features = pyarrow.array([[1.0, 2, 3]], pyarrow.list_(pyarrow.float32(), 3))
    new = asked(stream({"features": features, "neighbors": [["a", "b"]]}), ARROW).new
    assert new.features.tolist() == [[1, 2, 3]]
    assert new.neighbours == [["a", "b"]]


def test_arrow_that_could_grow_is_refused_before_it_is_unpacked():
    big = {"id": ["a" * 100_000] * 5}
    for codec in ("lz4", "zstd"):
        packed = stream(big, pyarrow.ipc.IpcWriteOptions(compression=codec))
        assert len(packed) < 5000
        with pytest.raises(AskedError, match="may not be compressed"):
            asked(packed, ARROW)
    codes = pyarrow.array(["a"] * 5).dictionary_encode()
    with pytest.raises(AskedError, match="may not hold a dictionary"):
        asked(stream({"id": codes}), ARROW)


@pytest.mark.parametrize(
    ("columns", "status", "words"),
    [
        ({"id": ["a"] * 6}, 413, "5 rows"),
        ({"id": [True]}, 400, "type bool"),
        ({"id": [[["a"]]]}, 400, "type list"),
        ({"name": ["a"]}, 400, "columns must be"),
        ({"id": pyarrow.array([None], pyarrow.string())}, 400, "text or a whole number"),
        ({"features": [[1.0, np.nan, 2.0]]}, 400, "finite"),
        ({"features": [None]}, 400, "null|valid list|must have features"),
    ],
)
def test_arrow_that_does_not_fit_is_refused(columns, status, words):
    with pytest.raises(AskedError, match=words) as error:
        asked(stream(columns), ARROW)
    assert error.value.status == status


@FUZZ
@given(data=st.data())
def test_damaged_arrow_is_refused_or_understood(data):
    whole = bytearray(stream({"id": ["a", "bc"]}))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    body = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with contextlib.suppress(AskedError):  # anything else is a failure
        assert isinstance(asked(body, ARROW), Asked)


@FUZZ
@given(body=st.binary(max_size=300))
def test_any_bytes_are_refused(body):
    for kind in (JSON, ARROW):
        with pytest.raises(AskedError):
            asked(body, kind)
