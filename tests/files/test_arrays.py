import gzip
import io
import os
import pickle
import resource
import shutil
import struct
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcl.errors import GraphCLError, GraphError
from graphcl.files.arrays import (
    advise_random_reads,
    create_npy,
    map_npy,
    read_npy,
    scratch_array,
    write_npy,
)
from graphcl.graphs.npz import read_graph
from tests.conftest import FUZZ
from tests.forging import Hostile, described, npy, refused, zipped

SMAPS = Path("/proc/self/smaps")


def flags(path):
    """The kernel's flags of the mapping of a file."""
    _, _, after = SMAPS.read_text().partition(f" {path}\n")
    return after.partition("VmFlags:")[2].splitlines()[0].split()


@pytest.mark.skipif(not SMAPS.exists(), reason="needs /proc")
def test_the_kernel_is_told_not_to_read_ahead(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(5000.0).reshape(500, 10))
    table = map_npy(path, GraphError)
    assert "rr" not in flags(path)
    advise_random_reads(table[3:, :4])  # a view serves as well
    assert "rr" in flags(path)
    assert table[499, 9] == 4999


@pytest.mark.parametrize("rows", [0, 1 << 15])
def test_a_new_tables_space_is_reserved(tmp_path, rows):
    path = tmp_path / "a.npy"
    table = create_npy(path, (rows, 4), np.float64)
    assert path.stat().st_blocks * 512 >= path.stat().st_size >= table.nbytes
    table[:] = 3
    table.flush()
    np.testing.assert_array_equal(np.load(path), np.full((rows, 4), 3.0))


@pytest.mark.parametrize("rows", [20, 2000])
def test_an_array_whose_last_bytes_find_no_room_is_not_passed_over(tmp_path, rows):
    """A limit on file sizes stands for the disk."""
    array, limit = np.zeros((rows, 4)), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (128 + array.nbytes - 8, limit[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_npy(tmp_path / "a.npy", array)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    write_npy(tmp_path / "a.npy", np.asfortranarray(array + 1))
    np.testing.assert_array_equal(map_npy(tmp_path / "a.npy", GraphError), array + 1)


def test_where_nothing_is_reserved_the_space_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    create_npy(tmp_path / "a.npy", (5, 4), np.float64)
    assert scratch_array((5, 4), np.float64, tmp_path).shape == (5, 4)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(99, 90, 9))
    for create in (
        lambda: create_npy(tmp_path / "b.npy", (5, 4), np.float64),
        lambda: scratch_array((5, 4), np.float64, tmp_path),
    ):
        with pytest.raises(OSError, match="No space left") as caught:
            create()
        assert caught.value.filename in (str(tmp_path / "b.npy"), str(tmp_path))


def test_where_the_kernel_takes_no_advice(tmp_path, monkeypatch):
    monkeypatch.delattr("mmap.MADV_RANDOM")
    np.save(tmp_path / "a.npy", np.arange(3))
    advise_random_reads(map_npy(tmp_path / "a.npy", GraphError))


@pytest.mark.parametrize("read", [map_npy, read_npy])
def test_what_is_no_npy_is_said_in_our_words(read, tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(b"")
    with pytest.raises(GraphError) as caught:
        read(path, GraphError)
    assert "magic" not in str(caught.value)
    assert "bytes" not in str(caught.value)
    path.write_bytes(gzip.compress(b"a"))
    with pytest.raises(
        GraphError, match=r"a\.npy: is gzipped; unpack it: gunzip < .*a\.npy > NEW.npy"
    ):
        read(path, GraphError)


pytestmark = pytest.mark.usefixtures("nothing_runs")
EDGES = npy(np.array([[0, 1], [1, 2]]))
X = npy(np.eye(3))


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


@FUZZ
@given(st.data())
def test_damaged_graph_files(data):
    np.savez("g.npz", edge_index=[[0, 1], [1, 2]], x=np.ones((3, 2)), node_ids=["a", "b", "c"])
    content = bytearray(Path("g.npz").read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    Path("g.npz").write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        read_graph(Path("g.npz"))
    except GraphCLError as error:
        outcome = str(error)
    else:
        outcome = "a graph"
    assert outcome


def test_a_header_is_read_again_if_another_thread_disturbed_python(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.arange(6).reshape(3, 2))
    whole, failures = np.lib.format.read_array_header_1_0, [SystemError("AST")] * 2

    def disturbed(file):
        found = whole(file)  # and it leaves the file where it stopped
        if failures:
            raise failures.pop()
        return found

    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", disturbed)
    assert map_npy(tmp_path / "a.npy", GraphError).tolist() == [[0, 1], [2, 3], [4, 5]]
    failures[:] = [SystemError("AST")] * 99
    with pytest.raises(GraphError, match="SystemError"):
        map_npy(tmp_path / "a.npy", GraphError)
