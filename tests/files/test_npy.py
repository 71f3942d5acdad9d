import gzip
from pathlib import Path

import numpy as np
import pytest

from graphcl.errors import GraphError
from graphcl.files.npy import advise_random_reads, map_npy, read_npy

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
