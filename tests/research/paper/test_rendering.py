from graphcl.research.paper import rendering
from graphcl.research.paper.table2 import assemble
from tests.research.paper.test_table2 import rows_of


def test_the_csv_has_every_cell_unrounded():
    cells = assemble(rows_of("graphcl", [0.8201, 0.83]), datasets=["cora"])
    lines = rendering.table_2_csv(cells).splitlines()
    assert len(lines) == 1 + len(cells)
    assert any("82.505" in line for line in lines)
