"""Two real ranks, of which rank 1 hangs: which of them is named, and how."""

import re
import time
from pathlib import Path

import pytest
from forked import ranks
from launching import TESTS

SECONDS = 90.0
"""For the message, on a busy machine."""

SCRIPT = TESTS / "hanging_rank.py"


def line(comment):
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    number = next(number for number, text in enumerate(lines, 1) if text.endswith(f"  # hang: {comment}"))
    return f"hanging_rank.py:{number} "


def at(comment):
    return re.escape(line(comment))


WORKER = r"Rank 1 waits for the loader's worker 0, which sleeps( in the kernel's `\w+`)?: `py-spy dump --pid \d+` shows"
CASES = {
    "lock": rf"Rank 1 is in forward: {at('lock')}`(Net\.)?forward`\. Rank 0 waits in backward",
    "tensor parallel": rf"Rank 1 is in forward: {at('lock')}`(Net\.)?forward`\. Rank 0 waits in communication: ",
    "store": rf"Rank 1 is in other code: {at('event')}.*Rank 0 waits in communication: {at('store')}",
    "monitored barrier": rf"Rank 1 is in other code: {at('event')}.*Rank 0 waits in communication: {at('barrier')}",
    "leave": rf"Rank 1 has left the training loop after step 5, and waits in communication: {at('left')}`train`, in "
    r"distributed_c10d\.py:\d+ `barrier`\. Rank 0 waits in backward: ",
    "start": r"Rank 1 is silent, last heard of in step 1 in other code: hanging_rank\.py:\d+ `\w+`",
    "raise": r"Rank 1 has ended the training after step 5: ValueError: no\\nsuch file\. Rank 0 waits in backward: ",
    "worker": rf"Rank 1 is in data: hanging_rank\.py:\d+ `train`, in .*Rank 0 waits in backward: .*{WORKER}",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_rank_that_hangs_is_named_with_the_place(tmp_path, case):
    imports = ("torch._dynamo", "torch.distributed.tensor.parallel", "perf_callbacks.loop")
    with ranks(SCRIPT.name, case, tmp_path, imports=imports, directory=tmp_path):
        deadline = time.monotonic() + SECONDS
        while not (told := said(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert told, [path.read_text() for path in sorted(tmp_path.glob("*.err"))]
    assert re.search(CASES[case], told[0]), told[0]


def said(directory: Path) -> list[str]:
    lines = [text for path in sorted(directory.glob("*.err")) for text in path.read_text().splitlines()]
    return [text for text in lines if "no step for" in text]
