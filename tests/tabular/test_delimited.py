import gzip
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from graphcl.tabular.build import read_tables
from tests.conftest import FUZZ
from tests.tabular.conftest import STRUCTURAL, edges_of, graph_or_one_line, write


def test_headers_are_guessed_or_given():
    write("plain.csv", "1,2\n2,3\n")
    assert edges_of(read_tables("plain.csv", **STRUCTURAL)) == {(1, 2), (2, 3)}
    write("names.csv", "ann,bob\nbob,eve\n")
    assert read_tables("names.csv", **STRUCTURAL).num_edges == 1
    assert read_tables("names.csv", header=False, **STRUCTURAL).num_edges == 2
    write("bom.csv", "\ufefffrom,to\nx,y\n")
    assert edges_of(read_tables("bom.csv", **STRUCTURAL)) == {("x", "y")}


@FUZZ
@given(st.binary(max_size=200), st.sampled_from(["a.csv", "a.tsv", "a.txt", "a.csv.gz"]))
def test_bytes_as_delimited_text(data, name):
    Path(name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    graph_or_one_line(name, features="structural")
