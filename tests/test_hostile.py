"""Files that are broken or mean harm: each is refused in one line, with exit code 2.

Every file is made here. While one is read, this process may take no more than 600 MB beyond what
it has, and nothing that a file asks for may be run.
"""

import io
import json
import os
import pickle
import resource
import struct
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl import Graph, GraphCL
from graphcl.cli.main import run
from graphcl.datasets.download import fetch_zip
from graphcl.datasets.unpickling import load_arrays
from graphcl.errors import DatasetError
from tests.conftest import random_graph

ROOM = 600 * 2**20


@pytest.fixture
def bounded():
    """Lets this process take no more than `ROOM` beyond what it has."""
    status = Path("/proc/self/status").read_text()
    used = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData"))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.fixture(autouse=True)
def nothing_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "was-run").exists()


class Hostile:
    def __reduce__(self):
        return (os.mkdir, ("was-run",))


def refused(arguments, capsys, message):
    capsys.readouterr()
    code = run([str(argument) for argument in arguments])
    err = capsys.readouterr().err
    assert code == 2, err
    line = err.strip().splitlines()[-1]
    assert message in line
    assert "Traceback" not in err
    assert "bug" not in line


def npy(array=None, *, header=None, data=b""):
    """Returns an .npy file: of an array, or with any header before any data."""
    if header is None:
        buffer = io.BytesIO()
        np.save(buffer, array)
        return buffer.getvalue()
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def described(descr, shape, order=False):
    return f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}"


EDGES = npy(np.array([[0, 1], [1, 2]]))
X = npy(np.eye(3))


def zipped(path, *, kind=zipfile.ZIP_STORED, **members):
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)


def members(path, names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, EDGES)


def bomb(path):
    path.write_bytes(bomb_bytes())


@cache
def bomb_bytes():
    """300 MB of zeros in little more than one."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("edge_index.npy", EDGES)
        with archive.open("x.npy", "w", force_zip64=True) as member:
            member.write(npy(header=described("<f4", (75 * 2**20, 1))))
            for _ in range(300):
                member.write(bytes(2**20))
    return buffer.getvalue()


def twice(path):
    with pytest.warns(UserWarning, match="Duplicate"):
        members(path, ["x.npy", "x.npy"])


def patched(path, old, new):
    zipped(path, edge_index=EDGES, x=X)
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def encrypted(path):
    zipped(path, edge_index=EDGES, x=X)
    data = bytearray(path.read_bytes())
    central = data.index(b"PK\x01\x02")
    data[central + 8] |= 1
    path.write_bytes(data)


def declared(path):
    """The directory says that a member unpacks to 4 GB."""
    zipped(path, edge_index=EDGES, x=X)
    data = bytearray(path.read_bytes())
    central = data.index(b"PK\x01\x02")
    data[central + 24 : central + 28] = struct.pack("<I", 0xFFFFFFFE)
    path.write_bytes(data)


def pickled(path):
    np.savez(path, edge_index=np.array([Hostile(), 1], dtype=object), x=np.eye(3))


def sparse(path, indptr, indices):
    np.savez(
        path,
        edge_index=[[0], [1]],
        x_indptr=indptr,
        x_indices=indices,
        x_data=np.ones(len(indices), np.float32),
        x_shape=[3, 4],
    )


def with_x(header, data=b""):
    return lambda path: zipped(path, edge_index=EDGES, x=npy(header=header, data=data))


NPZ = {
    "text": (lambda path: path.write_text("not a zip"), "not a readable .npz"),
    "empty": (lambda path: path.touch(), "not a readable .npz"),
    "cut": (
        lambda path: (zipped(path, edge_index=EDGES), path.write_bytes(path.read_bytes()[:90])),
        "not a readable .npz",
    ),
    "single array": (lambda path: path.write_bytes(X), "is a single array"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps(Hostile())), "not a readable .npz"),
    "pickled array": (pickled, "holds pickled objects, which are never read"),
    "object dtype": (with_x(described("|O", (3,)), pickle.dumps(Hostile())), "pickled objects"),
    "bomb": (bomb, "would grow"),
    "absurd shape": (
        with_x(described("<f4", (10**12, 64)), b"1234"),
        "claims shape (1000000000000",
    ),
    "overflowing shape": (with_x(described("<f4", (2**62, 4, 2**62)), b""), "claims shape"),
    "negative shape": (with_x(described("<f4", (-1, 4)), b""), "claims shape (-1, 4)"),
    "three dimensions": (
        lambda p: zipped(p, edge_index=EDGES, x=npy(np.ones((1, 2, 3)))),
        "claims",
    ),
    "wide text": (with_x(described("<U99999999", (9,)), b"abc"), "claims shape (9,)"),
    "records": (with_x("{'descr': [('a','<f4')], 'fortran_order': False, 'shape': (1,)}"), "holds"),
    "dates": (with_x(described("<M8[s]", (1,)), bytes(8)), "expected numbers or text"),
    "code in a header": (with_x("__import__('os').mkdir('was-run')"), "not a readable .npz"),
    "endless header": (
        lambda path: zipped(path, x=b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", edge_index=EDGES),
        "not a readable .npz",
    ),
    "unknown version": (
        lambda path: zipped(path, x=b"\x93NUMPY\x09\x00\x10\x00{}"),
        "not a readable",
    ),
    "many members": (lambda path: members(path, [f"a{n}.npy" for n in range(65)]), "65 members"),
    "path upwards": (lambda path: members(path, ["../evil.npy"]), "member named '../evil.npy'"),
    "absolute path": (lambda path: members(path, ["/tmp/evil.npy"]), "member named '/tmp/evil"),
    "windows path": (lambda path: members(path, ["a\\..\\evil.npy"]), "a member named"),
    "hidden member": (lambda path: members(path, [".x.npy"]), "member named '.x.npy'"),
    "twice": (twice, "holds 'x.npy' twice"),
    "encrypted": (encrypted, "is encrypted"),
    "lzma": (lambda path: zipped(path, kind=zipfile.ZIP_LZMA, x=X), "packed in an unusual way"),
    "declared size": (declared, "would grow"),
    "bad checksum": (lambda p: patched(p, np.eye(3).tobytes(), np.eye(3)[::-1].tobytes()), "CRC"),
    "edge beyond": (lambda p: np.savez(p, edge_index=[[0], [9]], x=np.eye(3)), "names node 9"),
    "negative edge": (lambda p: np.savez(p, edge_index=[[0], [-1]], x=np.eye(3)), "names node -1"),
    "not a number": (
        lambda p: np.savez(p, edge_index=[[0], [1]], x=[[np.nan], [0]]),
        "nan at node",
    ),
    "falling pointers": (lambda p: sparse(p, [0, 2, 1, 2], [0, 1]), "not a CSR matrix"),
    "column beyond": (lambda p: sparse(p, [0, 1, 1, 2], [0, 99]), "not a CSR matrix"),
    "a pipe": (os.mkfifo, "not a regular file"),
}


@pytest.mark.parametrize("case", NPZ)
def test_graph_files(case, tmp_path, capsys, bounded):
    make, message = NPZ[case]
    make(tmp_path / "g.npz")
    refused(["train", "g.npz", "--out", "run"], capsys, message)
    assert [file.name for file in tmp_path.iterdir()] == ["g.npz"]


def changed(**changes):
    """Changes `store.json`; a dotted key reaches into the arrays."""

    def change(store):
        header = json.loads((store / "store.json").read_text())
        for key, value in changes.items():
            array, _, field = key.partition("__")
            if field:
                header["arrays"].setdefault(array, {})[field] = value
            else:
                header[key] = value
        (store / "store.json").write_text(json.dumps(header))

    return change


def text(content):
    return lambda store: (store / "store.json").write_text(content)


def filled(name, place, value):
    """Writes a wrong number into an array; its header and size stay as they were."""

    def change(store):
        np.load(store / f"{name}.npy", mmap_mode="r+")[place] = value

    return change


def replaced(name, content):
    return lambda store: (store / f"{name}.npy").write_bytes(content)


def cut(store):
    file = store / "x.npy"
    file.write_bytes(file.read_bytes()[:-40])


def piped(store):
    (store / "x.npy").unlink()
    os.mkfifo(store / "x.npy")


def endless(store):
    (store / "store.json").unlink()
    (store / "store.json").symlink_to("/dev/zero")


def unknown_array(store):
    changed(**{"../../../tmp/x__dtype": "float32"})(store)


def fortran(store):
    x = np.load(store / "x.npy")
    replaced("x", npy(header=described("<f4", x.shape, order=True), data=x.tobytes()))(store)


def eight_bits(store):
    x = np.load(store / "x.npy")
    changed(x__dtype="int8")(store)
    replaced("x", npy(x.astype(np.int8)))(store)


STORES = {
    "not JSON": (text("{"), "not JSON"),
    "no object": (text("[1]"), "does not describe a store"),
    "long": (text(" " * 2**21), "at most 1048576 are read"),
    "deep": (text("[" * 100_000), "not JSON"),
    "many digits": (text('{"graphcl_store": ' + "9" * 10_000 + "}"), "not JSON"),
    "not text": (lambda store: (store / "store.json").write_bytes(b"\xff\xfe"), "not text"),
    "another format": (changed(graphcl_store=99), "store format 99"),
    "no arrays": (changed(arrays=None), "lacks name or arrays"),
    "absurd count": (changed(num_nodes=2**60), "num_nodes must be a count"),
    "negative count": (changed(num_nodes=-5), "num_nodes must be a count; got -5"),
    "a fraction": (changed(num_nodes=60.0), "num_nodes must be a count; got 60.0"),
    "zero nodes": (changed(num_nodes=0), "at least one node"),
    "other count": (changed(num_nodes=61), "does not fit 61 nodes"),
    "path as a name": (unknown_array, "unknown array"),
    "negative shape": (changed(x__shape=[-60, 12]), "x's shape must be a count; got -60"),
    "shape against header": (changed(x__shape=[60, 13]), "holds float32 (60, 12)"),
    "unknown dtype": (changed(x__dtype="object"), "x lacks a known dtype"),
    "dtype against header": (changed(x__dtype="float16"), "store.json says float16"),
    "cut": (cut, "its header needs"),
    "no such file": (lambda store: (store / "indices.npy").unlink(), "cannot be read"),
    "a pipe": (piped, "not a regular file"),
    "endless": (endless, "a graph file must be an .npz, a store or"),
    "object array": (replaced("x", npy(header=described("|O", (60, 12)))), "holds object (60, 12)"),
    "absurd header": (replaced("x", npy(header=described("<f4", (2**50, 12)))), "its header needs"),
    "code in a header": (
        replaced("x", npy(header="__import__('os').mkdir('was-run')")),
        "not an .npy",
    ),
    "column by column": (fortran, "holds float32"),
    "no scale": (eight_bits, "has no array 'x_scale'"),
    "index beyond": (filled("indices", 3, 60), "indices holds 60; expected 0 to 59"),
    "index far beyond": (filled("indices", -1, 2**31 - 1), "indices holds 2147483647"),
    "negative index": (filled("indices", 0, -1), "indices holds -1"),
    "falling pointers": (filled("indptr", 7, 10**9), "indptr falls at row 7"),
    "negative pointers": (filled("indptr", 7, -(2**40)), "indptr falls at row 6"),
    "pointers that end elsewhere": (filled("indptr", -1, 10**6), "indptr goes from 0 to 1000000"),
    "pointers that begin elsewhere": (filled("indptr", 0, 5), "indptr goes from 5"),
}


@pytest.mark.parametrize("case", STORES)
def test_stores(case, tmp_path, capsys, bounded):
    make, message = STORES[case]
    random_graph().save("store")
    make(tmp_path / "store")
    refused(["train", "store", "--out", "run"], capsys, message)
    assert [file.name for file in tmp_path.iterdir()] == ["store"]


def test_a_store_whose_sparse_features_point_outside(tmp_path, capsys, bounded):
    x = scipy.sparse.csr_array(np.eye(60, 5, dtype=np.float32))
    Graph.from_edge_index(random_graph().edge_index(), x).save("store")
    filled("x_indices", 2, 5)(tmp_path / "store")
    refused(["train", "store", "--out", "run"], capsys, "x_indices holds 5; expected 0 to 4")


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("node_id_offsets", 5, 2**40, "the name of node 4 lies at bytes"),
        ("node_id_offsets", 5, -1, "the name of node 4 lies at bytes"),
        ("node_ids", 9, 0xFF, "is not UTF-8"),
    ],
)
def test_names_that_lie(name, place, value, message, tmp_path, capsys, model, bounded):
    graph = random_graph()
    names = [f"node {number}" for number in range(60)]
    Graph.from_edge_index(graph.edge_index(), graph.x, node_ids=names).save("store")
    filled(name, place, value)(tmp_path / "store")
    refused(["embed", model, "store", "--out", "z.parquet"], capsys, message)
    assert not list(tmp_path.glob("*z.parquet*"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    estimator = GraphCL("default", dim=8, epochs=1, feature_scaling="none", device="cpu")
    estimator.fit(random_graph()).save(folder / "run")
    return folder / "run"


@pytest.fixture
def model(trained, tmp_path):
    """A run of its own to break."""
    (tmp_path / "model").mkdir()
    for file in trained.iterdir():
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    return tmp_path / "model"


def tensors(**about):
    text = json.dumps({"weights.0": about}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(64)


def weights(content):
    return lambda folder: (folder / "model.safetensors").write_bytes(content)


def cut_weights(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-30])


def hostile_weights(folder):
    torch.save(Hostile(), folder / "model.safetensors")


def config(old, new):
    def change(folder):
        file = folder / "config.toml"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return change


def lines(content):
    return lambda folder: (folder / "metrics.jsonl").write_text(content)


RUNS = {
    "cut weights": (cut_weights, "model.safetensors: damaged or truncated"),
    "no weights": (weights(b""), "damaged or truncated (a header of 0 bytes in 0)"),
    "absurd header": (weights(struct.pack("<Q", 2**62) + b"{}" + bytes(99)), "a header of 46116"),
    "long header": (weights(struct.pack("<Q", 2**21) + b" " * 2**21), "a header of 2097152"),
    "header of noise": (weights(struct.pack("<Q", 64) + bytes(range(64, 192))), "is not JSON"),
    "header of a list": (weights(struct.pack("<Q", 2) + b"[]" + bytes(9)), "is no table"),
    "deep header": (weights(struct.pack("<Q", 99_999) + b"[" * 100_099), "is not JSON"),
    "unknown dtype": (
        weights(tensors(dtype="PICKLE", shape=[8], data_offsets=[0, 64])),
        "weights.0",
    ),
    "lying shape": (
        weights(tensors(dtype="F32", shape=[2**40], data_offsets=[0, 64])),
        "weights.0",
    ),
    "negative shape": (
        weights(tensors(dtype="F32", shape=[-4, -4], data_offsets=[0, 64])),
        "not whe",
    ),
    "place beyond": (
        weights(tensors(dtype="F32", shape=[16], data_offsets=[64, 128])),
        "weights.0",
    ),
    "no place": (weights(tensors(dtype="F32", shape=[16])), "'weights.0' is not where"),
    "other shape": (
        weights(tensors(dtype="F32", shape=[4, 4], data_offsets=[0, 64])),
        "do not fit",
    ),
    "a pickle": (hostile_weights, "damaged or truncated"),
    "long TOML": (config("[run]", "#" * 2**20 + "\n[run]"), "at most 1048576 are read"),
    "deep TOML": (config("[run]", f"[run]\na = {'[' * 50_000}"), "not TOML"),
    "many digits": (config("seed = 0", f"seed = {'9' * 9_999}"), "not TOML"),
    "many features": (config("num_features = 12", "num_features = 1000000000000"), "do not fit"),
    "negative features": (config("num_features = 12", "num_features = -12"), "do not fit"),
    "absurd dim": (config("dim = 8", "dim = 99999999999"), "dim must be in [1, 65536]"),
    "absurd layers": (config("layers = 2", "layers = 100000"), "layers must be in [1, 64]"),
    "wide": (config("dim = 8", "dim = 65536"), "dim = 65536 do not fit model.safetensors"),
    "no seed": (config("seed = 0", "seed = 'x'"), "[run] lacks"),
    "metrics of noise": (lines("{\x00"), "metrics.jsonl: damaged"),
    "deep metrics": (lines("[" * 100_000), "metrics.jsonl: damaged"),
    "other metrics": (lines('{"epoch": 1, "evil": 2}'), "metrics.jsonl: damaged"),
    "metrics of a list": (lines("[1, 2]"), "metrics.jsonl: damaged"),
}


@pytest.mark.parametrize("case", RUNS)
def test_runs(case, model, tmp_path, capsys, bounded):
    make, message = RUNS[case]
    make(model)
    refused(["embed", model, "cora", "--out", "z.npy"], capsys, message)
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy(header=described("|O", (2708, 8)), data=pickle.dumps(Hostile())), "damaged"),
        (npy(header=described("<f4", (2**50, 8)), data=b"1234"), "damaged"),
        (npy(header=described("<f4", (2**62, 2**62))), "damaged"),
        (pickle.dumps(Hostile()), "damaged"),
        (b"", "damaged"),
    ],
)
def test_embeddings(content, message, model, capsys, bounded):
    config("[run]", '[run]\ngraph = "cora"')(model)
    (model / "embeddings.npy").write_bytes(content)
    refused(["evaluate", model], capsys, f"embeddings.npy: {message}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a = " + "[" * 50_000, "not TOML"),
        ("dim = " + "9" * 9_999, "not TOML"),
        ("#" * (2**20 + 1), "at most 1048576 are read"),
        ("recipe = 7", "[recipe] must be a table"),
        ("encoder = 1", "is missing"),
    ],
)
def test_recipes(content, message, tmp_path, capsys, bounded):
    (tmp_path / "r.toml").write_text(content)
    refused(["train", "cora", "--recipe", "r.toml", "--out", "run"], capsys, message)


def lying_matrix():
    matrix = scipy.sparse.csr_matrix(np.eye(3))
    matrix.indices = np.array([0, 1, 10**8], dtype=np.int32)
    return pickle.dumps(matrix)


PICKLES = {
    "a call": pickle.dumps(Hostile()),
    "a call in a list": pickle.dumps([1, {"x": Hostile()}]),
    "a lambda's name": b'cbuiltins\neval\n(S\'__import__("os").mkdir("was-run")\'\ntR.',
    "room for 8 GB of memos": b"\x80\x02Kr" + b"r\x00\x00\x00\x20" + b".",
    "an array out of nothing": (
        b"\x80\x02cnumpy._core.multiarray\n_reconstruct\n"
        b"(cnumpy\nndarray\n(\x8a\x06\x00\x00\x00\x00\x00\x01tU\x01ftR."
    ),
    "a terabyte of text": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"abc.",
    "a matrix that points outside": lying_matrix(),
    "cut": pickle.dumps(np.ones(99))[:-40],
    "nothing": b"",
}


@pytest.mark.parametrize("case", PICKLES)
def test_pickles(case, tmp_path, bounded):
    (tmp_path / "ind.cora.x").write_bytes(PICKLES[case])
    with pytest.raises(DatasetError, match="not a pickle of arrays"):
        load_arrays(tmp_path / "ind.cora.x")


@pytest.mark.parametrize("dataset", ["ppi/ppi.npz", "reddit/reddit_data.npz"])
@pytest.mark.parametrize(
    "case", ["bomb", "pickled array", "path upwards", "absurd shape", "a pipe"]
)
def test_datasets(case, dataset, tmp_path, capsys, monkeypatch, bounded):
    make, message = NPZ[case]
    (tmp_path / dataset).parent.mkdir()
    make(tmp_path / dataset)
    if case in ("pickled array", "absurd shape"):  # under the names that are looked for
        name = "features" if "ppi" in dataset else "feature"
        array = np.array([Hostile()], dtype=object)
        if case == "pickled array":
            np.savez(tmp_path / dataset, **{name: array})
        else:
            zipped(tmp_path / dataset, **{name: npy(header=described("<f4", (10**12, 64)))})
    monkeypatch.setenv("GRAPHCL_DATA", str(tmp_path))
    refused(["train", dataset.split("/")[0], "--out", "run"], capsys, message)


def archive_of(path, **files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "/").replace("_DOT_", "."), data)
    return path.as_uri()


def digest(uri):
    import hashlib

    return hashlib.sha256(Path(uri.removeprefix("file://")).read_bytes()).hexdigest()


def test_a_download_is_compared_before_it_is_unpacked(tmp_path):
    uri = archive_of(tmp_path / "a.zip", good=b"data")
    fetch_zip(uri, tmp_path / "raw", sha256=digest(uri), names=["good"], limit=2**20)
    assert (tmp_path / "raw" / "good").read_bytes() == b"data"
    with pytest.raises(DatasetError, match="expected 0000; not unpacked"):
        fetch_zip(uri, tmp_path / "other", sha256="0000", names=["good"], limit=2**20)
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"good": b"1", "_DOT__DOT___evil": b"2"}, "names are plain"),
        ({"__etc__evil": b"2"}, "names are plain"),
        ({"other": b"1"}, "holds no good"),
        ({"good": bytes(2**21)}, "more than 1048576 bytes"),
    ],
)
def test_archives_that_are_downloaded(files, message, tmp_path):
    uri = archive_of(tmp_path / "a.zip", **files)
    with pytest.raises(DatasetError, match=message):
        fetch_zip(uri, tmp_path / "raw", sha256=digest(uri), names=["good"], limit=2**20)
    assert list((tmp_path / "raw").iterdir()) == []
    assert not (tmp_path / "evil").exists()


def test_the_corpus_is_large():
    assert sum(map(len, (NPZ, STORES, RUNS, PICKLES))) >= 40
