"""Choose a temperature with scikit-learn, by validation nodes only."""

from sklearn.model_selection import GridSearchCV

import graphcl
from graphcl.datasets.synthetic import synthetic_graph

# A generated graph, so that this takes seconds; any labelled graph will do.
graph = synthetic_graph(num_nodes=400, num_edges=1600, num_features=24, num_classes=4)

search = GridSearchCV(
    graphcl.GraphCL(epochs=20, dim=32, feature_scaling="none"),
    {"temperature": [0.5, 1.0]},
    scoring=graphcl.probe_scorer,
    cv=[([0], [0])],  # one graph: train and score on it
)
search.fit([graph])  # X is a list of graphs
print("chosen on validation:", search.best_params_)

# Test nodes are read once, now that everything is chosen.
z = search.best_estimator_.transform(graph)
print(f"test accuracy: {graphcl.linear_probe(z, graph).accuracy:.3f}")
