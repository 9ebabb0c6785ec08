"""What is said of a worker process of a loader that the training waits for."""

import shutil
import threading

from rows import each_row

from perf_callbacks.stalls import workers

HINT = ": `py-spy dump --pid 7` shows its line."


@each_row(
    ("state", "function", "told"),
    [
        ("S", "futex_do_wait", ", which sleeps in the kernel's `futex_do_wait`"),
        ("S", "0", ", which sleeps"),
        ("S", None, ", which sleeps"),
        ("D", "nfs_wait", ", which waits for a disk or a network file system in the kernel's `nfs_wait`"),
        ("R", "0", ", which runs"),
        ("T", "do_signal_stop", ", which is stopped in the kernel's `do_signal_stop`"),
        ("Z", "0", ", which has ended"),
        ("?", "0", ""),
        (None, None, ""),
    ],
)
def test_a_worker_has_its_state_and_the_kernel_function(tmp_path, state, function, told):
    process = tmp_path / "proc" / "7"
    shutil.rmtree(process, ignore_errors=True)
    process.mkdir(parents=True)
    if state is not None:
        (process / "stat").write_text(f"7 (py thon) (x)) {state} 1 7 7 0 -1")
    if function is not None:
        (process / "wchan").write_text(function)
    assert workers.sentence("Rank 3", 1, 7, tmp_path) == f"Rank 3 waits for the loader's worker 1{told}{HINT}"


def test_a_thread_that_waits_for_something_else_waits_for_no_worker():
    assert workers.awaited(threading.get_ident()) is None
    assert workers.awaited(-1) is None
