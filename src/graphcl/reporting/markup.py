"""Pieces of markup that sections share; every text of the user is escaped here."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Any


def card(title: str, body: str) -> str:
    """Returns a section with a heading; `body` is markup."""
    return f'<section class="card"><h2>{escape(title)}</h2>{body}</section>'


def facts_table(facts: Iterable[tuple[Any, ...]]) -> str:
    """Returns rows of a name, a value and a remark; all are escaped."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}'
        f"{f'<small>{escape(about)}</small>' if about else ''}</td></tr>"
        for name, value, about in facts
    )
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


def bars(rows: Sequence[tuple[str, int]], *, label: str, coloured: bool = False) -> str:
    """Returns horizontal bars with their counts; `coloured` gives them their colours on the map."""
    most = max((count for _, count in rows), default=1) or 1
    total = sum(count for _, count in rows) or 1
    items = []
    for number, (name, count) in enumerate(rows):
        colour = f' data-colour="{number}"' if coloured else ""
        items.append(
            f'<li><span class="name">{escape(name)}</span>'
            f'<span class="track"><span class="bar"{colour} '
            f'style="width:{100 * count / most:.2f}%"></span></span>'
            f'<span class="count">{count:,} <small>{percent(count / total)}</small></span></li>'
        )
    return f'<ul class="bars" aria-label="{escape(label, quote=True)}">{"".join(items)}</ul>'


def percent(share: float) -> str:
    """Returns a share as markup."""
    return f"{100 * share:.0f} %" if share >= 0.0095 or share == 0 else "&lt;1 %"


def asset(name: str) -> str:
    """Returns a script or style of the pages."""
    return (resources.files("graphcl.reporting") / "assets" / name).read_text(encoding="utf-8")
