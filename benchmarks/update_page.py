"""The tables of docs/research/speed.md, made from the rows of `benchmarks.update`."""

from typing import Any

import numpy as np

from benchmarks import rows


def page(text: str, found: list[Any]) -> str:
    """Returns a page with its tables made from rows; of equal measurements the last counts."""
    keys = ("what", "nodes", "anywhere", "second", "graph", "seed", "more")
    latest = {tuple(row.get(key) for key in keys): row for row in found}

    def of(kind: str) -> list[Any]:
        return [row for (what, *_), row in latest.items() if what == kind]

    tables_of = {
        "speed": _speed_table([row for row in of("speed") if "second" in row]),
        "aligned": _aligned_table(of("aligned")),
    }
    for name, table in tables_of.items():
        text = rows.placed(text, f"<!-- table: {name} -->\n", table, "<!-- end -->")
    return text


def _speed_table(found: list[Any]) -> str:
    lines = [
        "| links that lead anywhere | update | embedded again | whole update | all anew, and "
        "writing | times faster | times less of the processor | written |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {100 * row['anywhere']:g} % | {'second' if row['second'] else 'first'} | "
        f"{row['embedded']:,} | {row['update_seconds']:.2f} s | {row['anew_seconds']:.1f} + "
        f"{row['anew_write_seconds']:.1f} s | {row['times_faster']:.1f} | "
        f"{row['times_less_work']:.1f} | {row['version_bytes'] / 1e6:,.0f} MB |"
        for row in sorted(found, key=lambda row: (row["anywhere"], row["second"]))
    ]
    return "\n".join(lines) + "\n"


def _aligned_table(found: list[Any]) -> str:
    lines = [
        "| graph | more epochs | before | updated | trained on | without alignment | "
        "new nodes: updated | trained on | without alignment |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    columns = (
        ("before", "known"),
        ("updated", "known"),
        ("retrained", "known"),
        ("retrained_not_aligned", "known"),
        ("updated", "new"),
        ("retrained", "new"),
        ("retrained_not_aligned", "new"),
    )
    for name, more in dict.fromkeys((row["graph"], row["more"]) for row in found):
        own = [row["accuracy"] for row in found if (row["graph"], row["more"]) == (name, more)]
        cells = [100 * np.mean([one[step][which] for one in own]) for step, which in columns]
        lines.append(
            f"| {name} | {100 * more:g} % | " + " | ".join(f"{cell:.1f} %" for cell in cells) + " |"
        )
    return "\n".join(lines) + "\n"
