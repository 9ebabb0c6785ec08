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
