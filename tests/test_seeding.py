from graphcl.seeding import derive


def test_streams_are_independent_and_stable():
    assert derive(0, "views", 1) == derive(0, "views", 1)
    seeds = {derive(s, name, n) for s in range(3) for name in ("a", "b") for n in range(50)}
    assert len(seeds) == 300
    assert all(0 <= seed < 2**63 for seed in seeds)
