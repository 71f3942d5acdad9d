"""The sections of the page on answers that were asked of the run: labels, groups, links.

A run may come from anybody, so nothing is taken for granted of the summaries in it: a section that
cannot be made is left out, and every text is escaped.
"""

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from graphcl.reporting.markup import bars, card, facts_table

MOST_ROWS = 12


def answer_sections(answers: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a section for each answer that the run keeps, in a fixed order."""
    made: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "predict": predictions,
        "cluster": groups,
        "links": links,
    }
    found = []
    for kind, make in made.items():
        if kind in answers:
            try:
                found.append(make(answers[kind]))
            except (KeyError, TypeError, ValueError, AttributeError, IndexError):
                continue  # damaged, or of another version
    return "".join(found)


def predictions(about: Mapping[str, Any]) -> str:
    """Returns the section on predicted labels: how many, and how often they are wrong."""
    facts = [("Nodes predicted", f"{int(about['nodes']):,}", "")]
    facts.append(("Learned from", f"{sum(map(int, about['labelled'].values())):,} labels", ""))
    for key, what in (("error", "labelled nodes, each held out"), ("test", "test nodes")):
        error = about.get(key)
        if error:
            facts += _error(error, what, several=bool(about["several"]))
    counts = sorted(about["predicted"].items(), key=lambda pair: -int(pair[1]))[:MOST_ROWS]
    drawn = bars([(str(name), int(count)) for name, count in counts], label="Nodes by label")
    text = (
        "<p class='hint'>From <code>graphcl predict</code>: logistic regression on the embeddings, "
        "with calibrated probabilities.</p>"
    )
    return card(
        "Predicted labels",
        f'{text}<div class="two"><div>{facts_table(facts)}</div>'
        f"<figure><h3>Predicted, by label</h3>{drawn}</figure></div>",
    )


def _error(error: Mapping[str, Any], what: str, *, several: bool) -> list[tuple[str, str, str]]:
    nodes = f"{int(error['nodes']):,} {what}"
    word = "Measured" if error.get("how") == "held-out nodes" else "Expected"
    if several:
        score = (f"{word} micro-F1", f"{float(error['micro_f1']):.3f}", nodes)
    else:
        spread = f" ± {100 * float(error['standard_error']):.1f}"
        accuracy = f"{100 * float(error['accuracy']):.1f}{spread} %"
        score = (f"{word} accuracy", accuracy, nodes)
    majority = float(error["majority"])
    alone = f"{majority:.3f}" if several else f"{100 * majority:.1f} %"
    return [
        score,
        ("Majority", alone, "one answer for all nodes"),
        (
            "Calibration error",
            f"{float(error['calibration_error']):.3f}",
            "how far probabilities are from the share that is right",
        ),
    ]


def groups(about: Mapping[str, Any]) -> str:
    """Returns the section on groups: their sizes, and the nodes nearest to their centres."""
    rows = []
    for number, (size, names) in enumerate(zip(about["sizes"], about["typical"], strict=True), 1):
        listed = ", ".join(escape(str(name)) for name in names)
        rows.append(
            f'<tr><th scope="row">group {number}</th><td>{int(size):,} nodes'
            f"<small>{listed}</small></td></tr>"
        )
    score = about.get("silhouette")
    said = f"{int(about['groups'])} groups by {escape(str(about['method']))}"
    said += f", silhouette {float(score):.3f}" if score is not None else ""
    if about.get("chosen_by"):
        said += f"; their number was chosen by the {escape(str(about['chosen_by']))}"
    if about.get("outside"):
        said += f"; {int(about['outside']):,} nodes are in none"
    shown = rows[:MOST_ROWS]
    more = len(rows) - len(shown)
    below = f"<p class='hint'>… and {more} smaller groups.</p>" if more else ""
    return card(
        "Groups",
        f"<p class='hint'>From <code>graphcl cluster</code>: {said}. Named are the nodes nearest "
        f'to each centre.</p><table class="facts"><tbody>{"".join(shown)}</tbody></table>{below}',
    )


def links(about: Mapping[str, Any]) -> str:
    """Returns the section on links: the likeliest, and what their scores are worth."""
    body = ""
    best = about.get("best") or []
    if best:
        rows = [
            (f"{one['source']} – {one['target']}", f"{float(one['score']):.3f}", "")
            for one in best[:MOST_ROWS]
        ]
        body += f"<div><h3>Most likely, and missing</h3>{facts_table(rows)}</div>"
    worth = about.get("evaluation")
    if worth:
        rows = []
        for name, one in worth["scores"].items():
            text = f"ROC-AUC {float(one['roc_auc']):.3f}, MRR {float(one['mrr']):.3f}"
            rows.append((name.replace("_", " "), text, ""))
        said = (
            f"{int(worth['held_out']):,} linked pairs were removed before training; each is ranked "
            f"among {int(worth['negatives'])} pairs that are not linked."
        )
        caption = f"<p class='hint'>{escape(said)}</p>"
        body += f"<div><h3>What the scores are worth</h3>{facts_table(rows)}{caption}</div>"
    text = "<p class='hint'>From <code>graphcl links</code>: the cosine of two embeddings.</p>"
    return card("Links", f'{text}<div class="two">{body}</div>') if body else ""
