from benchmarks.links_model import PAGE, page, table


def test_the_table_of_the_page_is_that_of_the_rows():
    assert page(PAGE.read_text()) == PAGE.read_text(), "python -m benchmarks.links_model page"


def test_a_table_has_means_over_seeds_and_what_the_model_gains():
    def row(graph, model, alone, other):
        scores = {"model": model, "embeddings": alone, "common_neighbours": other}
        return {"graph": graph, "scores": {name: {"mrr": one} for name, one in scores.items()}}

    rows = [row("a", 0.4, 0.1, 0.2), row("a", 0.6, 0.1, 0.4), row("b", 0.25, 0.2, 0.25)]
    assert table(rows)[0] == "| MRR | model | embeddings | common neighbours | gain |"
    assert table(rows)[2:] == [
        "| a | 0.500 | 0.100 | 0.300 | +0.200 |",
        "| b | 0.250 | 0.200 | 0.250 | +0.000 |",
        "| mean | 0.375 | 0.150 | 0.275 | +0.100 |",
    ]
