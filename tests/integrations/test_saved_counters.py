"""Counters in a checkpoint directory that anybody may have written to."""

from perf_callbacks.integrations import saved_counters

STATE = {"rank": 0, "step": 2, "attempt": 1}


def test_a_link_in_place_of_the_unfinished_file_is_not_written_to(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "perf_callbacks.tmp").symlink_to(secret)
    saved_counters.write(tmp_path, 0, STATE)
    assert secret.read_text() == "secret"
    assert saved_counters.read(tmp_path, 0) == STATE


def test_a_rank_without_a_file_reads_the_file_of_rank_0(tmp_path):
    saved_counters.write(tmp_path, 0, STATE)
    assert saved_counters.read(tmp_path, 1) == STATE
    saved_counters.write(tmp_path, 1, STATE | {"rank": 1})
    assert [saved_counters.read(tmp_path, rank)["rank"] for rank in range(3)] == [0, 1, 0]


def test_a_directory_that_cannot_be_written_costs_a_warning(tmp_path, caplog):
    saved_counters.write(tmp_path / "missing", 0, STATE)
    assert "the checkpoint has no counters" in caplog.text
    assert saved_counters.read(tmp_path / "missing", 0) == {}
