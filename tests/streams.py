"""Tables of people who come day by day, and of who gets to know whom."""

import csv
import io
from datetime import date, timedelta

import numpy as np

UNTIL = "2025-03-10"


def day(number):
    return (date(2025, 3, 1) + timedelta(days=int(number))).isoformat()


def table(rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def stream(seed=0, nodes=30, edges=90):
    """Rows of people and of who knows whom, over 20 days; some come on one day."""
    random = np.random.default_rng(seed)
    joined = random.integers(0, 20, nodes)
    joined[:6] = 0
    people = [["id", "joined", "v", "colour", "y", "judged"]]
    for one in range(nodes):
        colour = "rgb"[one % 3] if joined[one] < 10 else "violet"
        later = int(joined[one] + random.integers(0, 4))
        people.append(
            [f"p{one}", day(joined[one]), random.normal(), colour, "st"[one % 2], day(later)]
        )
    knows = [["a", "b", "day"]]
    for one, other in random.integers(0, nodes, (edges, 2)):
        if one != other:
            when = max(joined[one], joined[other]) + int(random.integers(0, 4))
            knows.append([f"p{one}", f"p{other}", day(when)])
    return people, knows


def known(rows, column, until=UNTIL, after=""):
    """The rows of a table until a day, and after another."""
    at = rows[0].index(column)
    return [rows[0], *(row for row in rows[1:] if after < row[at] <= until)]


def changed_future(people, knows, until=UNTIL):
    """The same past, and another future: rows changed, added and taken away."""
    at, judged = people[0].index("joined"), people[0].index("judged")
    other = [people[0]]
    for place, row in enumerate(people[1:]):
        if row[at] > until and place % 3 == 0:
            continue  # never came
        if row[at] > until:
            row = [row[0], row[1], 1e30, f"new {place}", "unheard of", row[judged]]
        elif row[judged] > until:
            row = [*row[:4], "another", "2031-01-01"]
        other.append(row)
    there = {row[0] for row in other}
    other.append(["late", "2031-05-05", -7, "grey", "", ""])
    ends = [row for row in knows[1:] if {row[0], row[1]} <= there and row[2] <= until]
    return other, [knows[0], ["late", "p0", "2031-05-06"], *ends, ["p0", "p1", "2040-01-01"]]
