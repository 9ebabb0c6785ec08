"""Two real ranks, of which rank 1 hangs: which of them is named, and how."""

import re

import pytest
from jobs import IMPORTS, TESTS, Job


def at(comment):
    lines = (TESTS / "jobs" / "hanging.py").read_text(encoding="utf-8").splitlines()
    number = next(number for number, text in enumerate(lines, 1) if text.endswith(f"  # hang: {comment}"))
    return re.escape(f"hanging.py:{number} ")


WORKER = r"Rank 1 waits for the loader's worker 0, which sleeps( in the kernel's `\w+`)?: `py-spy dump --pid \d+` shows"
CASES = {
    "lock": rf"Rank 1 is in forward: {at('lock')}`(Net\.)?forward`\. Rank 0 waits in backward",
    "tensor parallel": rf"Rank 1 is in forward: {at('lock')}`(Net\.)?forward`\. Rank 0 waits in communication: ",
    "store": rf"Rank 1 is in other code: {at('event')}.*Rank 0 waits in communication: {at('store')}",
    "monitored barrier": rf"Rank 1 is in other code: {at('event')}.*Rank 0 waits in communication: {at('barrier')}",
    "leave": rf"Rank 1 has left the training loop after step 5, and waits in communication: {at('left')}`train`, in "
    r"distributed_c10d\.py:\d+ `barrier`\. Rank 0 waits in backward: ",
    "start": r"Rank 1 is silent, last heard of in step 1 in other code: hanging\.py:\d+ `\w+`",
    "raise": r"Rank 1 has ended the training after step 5: ValueError: no\\nsuch file\. Rank 0 waits in backward: ",
    "worker": rf"Rank 1 is in data: hanging\.py:\d+ `train`, in .*Rank 0 waits in backward: .*{WORKER}",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_rank_that_hangs_is_named_with_the_place(tmp_path, case):
    with Job("hanging.py", tmp_path, imports=(*IMPORTS["loop"], "jobs.hanging"), plan={"case": case}) as job:
        job.until(lambda: stalls(job))
    assert re.search(CASES[case], stalls(job)[0]), stalls(job)[0]


def stalls(job):
    lines = [line for rank in range(2) for line in job.errors(rank).splitlines()]
    return [line for line in lines if "no step for" in line]
