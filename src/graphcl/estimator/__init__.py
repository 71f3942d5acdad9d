"""`GraphCL`: the method behind scikit-learn's verbs."""
