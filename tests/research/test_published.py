from graphcl.research.published import TABLE_2, UNSUPERVISED, lines_of


def test_the_published_table_is_the_papers():
    by = {system.name: system.scores for system in TABLE_2}
    assert (by["graphcl"]["cora"].mean, by["graphcl"]["cora"].std) == (83.6, 0.5)
    assert (by["graphcl"]["reddit"].mean, by["graphcl"]["reddit"].std) == (0.951, 0.01)
    assert by["gcn"]["pubmed"].std is None
    assert "ppi" not in by["fastgcn"]
    names = [system.name for system in lines_of("cora") if system.scores]
    assert names == ["raw", "deepwalk", "deepwalk-features", "ep-b", "dgi", "graphcl", "gcn", "gat"]
    assert len([system for system in lines_of("ppi") if system.group == UNSUPERVISED]) == 7
