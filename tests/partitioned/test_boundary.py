"""The boundary against sets; what travels is tested with `embed_part`, in processes."""

import numpy as np
import pytest
import torch

from graphcl.distributed import ALONE, Share, agree
from graphcl.errors import StoreError
from graphcl.files.arrays import scratch_array
from graphcl.partitioned import boundary
from graphcl.partitioned.boundary import Boundary, open_own_part, outside
from graphcl.store.reader import open_part
from graphcl.tabular.build import build_store
from tests.conftest import plain_part, random_graph


@pytest.fixture
def folder(tmp_path):
    random_graph().save(tmp_path / "store")
    build_store(tmp_path / "store", out=tmp_path / "parts", parts=3, order="hash")
    return tmp_path / "parts"


@pytest.mark.parametrize("entries", [5, 1 << 21])
def test_the_boundary_is_where_edges_lead(folder, monkeypatch, entries):
    monkeypatch.setattr(boundary, "ENTRIES", entries)
    for number in range(3):
        part = plain_part(open_part(folder, number))
        own = range(part.nodes.start, part.nodes.stop)
        expected = {int(node) for node in part.fields["indices"]} - set(own)
        assert outside(part, [part.fields["indices"]]).tolist() == sorted(expected)


def test_rows_of_a_table_are_own_nodes_and_then_the_boundary(folder):
    part = plain_part(open_part(folder, 1))
    nodes = outside(part, [part.fields["indices"]])
    own = part.nodes.stop - part.nodes.start
    one = Boundary(Share(1, 3), part.nodes.start, own, nodes, (), torch.empty(0), ())
    row = {node: place for place, node in enumerate([*range(60)[part.nodes], *nodes.tolist()])}
    indices = np.asarray(part.fields["indices"])
    assert one.local(indices).tolist() == [row[node] for node in indices.tolist()]
    assert one.rows == len(row)


def test_there_is_a_process_for_each_part(folder):
    with pytest.raises(StoreError, match="one for each process; got 1 process: start as many"):
        open_own_part(folder, ALONE)
    with pytest.raises(StoreError, match="no such store"):
        open_own_part(folder / "none", ALONE)
    agree("", ALONE, StoreError)
    with pytest.raises(StoreError, match=r"^torn$"):
        agree("torn", ALONE, StoreError)


def test_scratch_leaves_nothing_behind(tmp_path):
    for shape in ((3, 4), (0, 4)):
        array = scratch_array(shape, np.float32, tmp_path)
        array[...] = 1
        assert (array.shape, array.dtype) == (shape, np.float32)
        assert scratch_array(shape, np.float32, None).shape == shape
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("peer_bytes", [1, 24, 1 << 20])
def test_rows_in_rounds_arrive_as_at_once(monkeypatch, peer_bytes):
    """Three processes in one: what each gives is kept until all have given."""
    monkeypatch.setattr(boundary, "PEER_BYTES", peer_bytes)
    counts = np.array([[2, 0, 7], [1, 3, 0], [5, 4, 2]])  # rows from a process to another
    tables = [torch.arange(3 * n).view(n, 3) + 100 * r for r, n in enumerate(counts.sum(1))]
    given = {}  # by round: what each process gives
    rounds = [0, 0, 0]

    def exchange(rank, rows, giving, taking, _):
        number = rounds[rank] % len(given[rank]) if given.get(rank) else 0
        rounds[rank] += 1
        pieces = [given[other][number][rank] for other in range(3)]
        assert [len(one) for one in pieces] == taking
        return torch.cat(pieces)

    def give(rank, rows, giving, taking, _):
        given.setdefault(rank, []).append(torch.split(rows, giving))
        return rows.new_zeros(sum(taking), 3)

    for act in (give, exchange):
        for rank in range(3):
            monkeypatch.setattr(boundary, "exchange", lambda *a, act=act, r=rank: act(r, *a))
            giving, taking = counts[rank].tolist(), counts[:, rank].tolist()
            found = boundary.exchange_in_rounds(tables[rank], giving, taking, 7)
            if act is exchange:
                parts = [torch.split(tables[o], counts[o].tolist())[rank] for o in range(3)]
                assert torch.equal(found, torch.cat(parts))
    sizes = [len(piece) * 24 for each in given.values() for one in each for piece in one]
    assert max(sizes) <= max(24, peer_bytes)
