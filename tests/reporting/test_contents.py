import numpy as np


def test_several_graphs_have_a_report(collection, tmp_path, recipe):
    from graphcl.estimator import GraphCL
    from graphcl.reporting.contents import gather
    from graphcl.reporting.page import render
    from graphcl.runs import files as runs
    from graphcl.runs.nodes import describe_nodes, write_nodes

    model = GraphCL(recipe, device="cpu")
    z = np.concatenate(model.fit_transform(collection))
    with runs.new_run(tmp_path / "run") as made:
        model.write_to(made, runs.Origin("tissues"))
        np.save(made / runs.EMBEDDINGS, z)
        write_nodes(made, describe_nodes(collection))
    contents = gather(tmp_path / "run", collection, method="pca")
    assert len(contents.nodes) == collection.num_nodes
    assert np.bincount(contents.nodes.split_codes, minlength=4).tolist() == [
        0,
        *collection.split_nodes,
    ]
    assert contents.agreement.nodes <= collection.num_nodes
    assert contents.alignment > 0
    assert "Split" in render(contents)
