import numpy as np
import pandas

from benchmarks.days import BEGIN, END, PAGE, ROWS, made, write_stream
from benchmarks.rows import placed, read


def test_the_table_of_the_page_is_that_of_the_rows():
    page = PAGE.read_text()
    assert placed(page, BEGIN, made(read(ROWS)), END) == page, "python -m benchmarks.days page"


def test_in_the_stream_contacts_come_after_customers_and_what_is_a_risk_drifts(tmp_path):
    write_stream(tmp_path)
    people = pandas.read_csv(tmp_path / "customers.csv").set_index("id")
    contacts = pandas.read_csv(tmp_path / "contacts.csv")
    for end in ("a", "b"):
        assert (people.loc[contacts[end], "joined"].to_numpy() <= contacts["day"]).all()
    assert (people["joined"] < people["judged"]).all()
    risk = people["risk"] == "yes"
    early, late = people["joined"] < "2025-03-01", people["joined"] > "2025-11-01"
    for column, more, less in (("c0", early, late), ("c1", late, early)):
        strong, weak = (
            abs(np.corrcoef(people.loc[some, column], risk[some])[0, 1]) for some in (more, less)
        )
        assert strong > 0.4 > 0.25 > weak
