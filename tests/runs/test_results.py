import numpy as np

from graphcl.runs.results import answer_file, keep_answer, read_answer_table, read_answers


def test_summaries_come_back_by_kind(tmp_path):
    assert read_answers(tmp_path) == {}
    assert keep_answer(tmp_path, "predict", {"nodes": 3, "names": ["Zoë"]}) == ""
    assert keep_answer(tmp_path, "cluster", {"sizes": [2, 1]}) == ""
    assert read_answers(tmp_path) == {
        "predict": {"nodes": 3, "names": ["Zoë"]},
        "cluster": {"sizes": [2, 1]},
    }


def test_damaged_summaries_are_left_out_and_a_run_that_cannot_be_written_is_said(tmp_path):
    for text in ("{", "[1]", "[" * 100_000, "\x00"):
        answer_file(tmp_path, "links").write_text(text)
        assert read_answers(tmp_path) == {}
    assert "could not be kept" in keep_answer(tmp_path / "absent", "links", {})


def test_a_table_lies_beside_its_summary(tmp_path):
    table = {"id": np.array(["Zoë", "b"]), "p:yes": np.array([0.5, 0.25], np.float32)}
    assert read_answer_table(tmp_path, "predict") == {}
    assert keep_answer(tmp_path, "predict", {"nodes": 2}, table) == ""
    assert read_answer_table(tmp_path, "predict") == {"id": ["Zoë", "b"], "p:yes": [0.5, 0.25]}
    assert keep_answer(tmp_path, "predict", {"nodes": 2}) == ""  # a summary alone leaves it
    assert read_answer_table(tmp_path, "predict")
    (tmp_path / "answer-predict.parquet").write_bytes(b"PAR1 damaged")
    assert read_answer_table(tmp_path, "predict") == {}
