"""The paper's claims beside its tables, each as an experiment."""
