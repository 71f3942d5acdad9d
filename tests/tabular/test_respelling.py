"""Ids that are written in two ways are recognised, and what is proposed works when pasted."""

import shlex

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from graphcl.cli.main import run
from graphcl.errors import GraphError
from graphcl.tabular.build import read_tables
from tests.tabular.conftest import write

SPELLINGS = [
    ("{}", "{:02}", "edges"),  # how nodes, and how ends are written, and what is read otherwise
    ("{:06}", "{}", "edges"),
    ("{:06}", "{:02}", "edges"),
    ("{}.0", "{}", "nodes"),
    ("0{}", "{}", "nodes"),
]


@pytest.mark.parametrize("kind", ["csv", "parquet", "query"])
@pytest.mark.parametrize(("node", "end", "mended"), SPELLINGS)
def test_ids_that_differ_by_zeros_are_recognised_and_the_remedy_works(
    node, end, mended, kind, capsys
):
    people = {"id": [node.format(n) for n in range(12)], "x": [f"{n}.5" for n in range(12)]}
    knows = {
        "who": [end.format(n) for n in range(11)],
        "whom": [end.format(n + 1) for n in range(11)],
    }
    tables = {}
    for name, columns in {"people": people, "knows": knows}.items():
        lines = [",".join(row) for row in zip(*columns.values(), strict=True)]
        write(f"{name}.csv", "\n".join([",".join(columns), *lines]) + "\n")
        pyarrow.parquet.write_table(pyarrow.table(columns), f"{name}.parquet")
        tables[name] = f"{name}.parquet" if kind == "parquet" else f"{name}.csv"
    if kind == "query":
        tables["knows"] = "SELECT * FROM read_csv('knows.csv', all_varchar=true)"
    plain = ["check", tables["knows"], "--nodes", tables["people"], "--id-column", "id"]
    assert run(plain) == 2
    said = capsys.readouterr().err
    assert "ids differ from ids of nodes by zeros alone" in said
    if mended == "edges":
        proposed = shlex.split(said.rpartition("in place of the list: ")[2])
        rest = ["--nodes", tables["people"]]
    else:
        proposed = shlex.split(said[said.index("--nodes ") :])[:2]
        rest = [tables["knows"]]
    assert run(["check", *rest, *proposed, "--id-column", "id"]) == 0
    assert "12 nodes, 11 edges, 1 feature" in capsys.readouterr().out


@pytest.mark.parametrize("among_others", [False, True])
def test_so_are_those_of_a_graph_with_types(among_others, capsys):
    """Whole numbers may be the ids of another type, too, which has no say then."""
    goods = [str(n) if among_others else f"g{n}" for n in range(30)]
    write("customers.csv", "id,x\n" + "".join(f"{n:06},{n}.5\n" for n in range(20)))
    write("goods.csv", "id,x\n" + "".join(f"{one},1.{n}\n" for n, one in enumerate(goods)))
    rows = "".join(f"{n % 20},{goods[n]}\n" for n in range(30))
    write("orders.csv", f"customer_id,goods_id\n{rows}")
    words = ["check", "--nodes", "customer=customers.csv", "--nodes", "goods=goods.csv"]
    assert run([*words, "--edges", "orders=orders.csv"]) == 2
    said = capsys.readouterr().err
    assert "orders.csv: column 'customer_id': 20 ids differ from ids of nodes by zeros" in said
    proposed = shlex.split(said[said.index("--edges ") :])[:2]
    assert run([*words, *proposed]) == 0
    assert "orders joins customer → goods" in capsys.readouterr().err


def test_tables_of_pandas_are_told_in_its_words():
    people = pandas.DataFrame({"id": [f"{n:04}" for n in range(9)], "x": np.arange(9) + 0.5})
    table = pandas.DataFrame({"who": range(8), "whom": range(1, 9)})
    with pytest.raises(GraphError, match="write them with 4 digits: ") as refused:
        read_tables(table, people)
    exec(str(refused.value).rpartition("digits: ")[2])  # noqa: S102
    assert read_tables(table, people).num_edges == 8


def test_edges_that_may_add_nodes_say_it_too(capsys):
    write("people.csv", "id,x\n" + "".join(f"{n:03},{n}.5\n" for n in range(9)))
    write("knows.csv", "who,whom\n000,001\n5,6\n")
    for how in ("add", "drop"):
        words = ["check", "knows.csv", "--nodes", "people.csv", "--unknown-edges", how]
        assert run(words) == 0
        assert "2 ids differ from ids of nodes by zeros alone: '5' here" in capsys.readouterr().err
