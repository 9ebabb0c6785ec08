"""`perf-callbacks show`: show the card of a recorded run, also of a running or killed run."""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.clock import unix_time
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.records.codec import pack
from perf_callbacks.kernel.records.journal_ends import FitEnds, read
from perf_callbacks.kernel.records.journal_file import FOLDER, files
from perf_callbacks.kernel.records.signs_of_life import Locks, read_locks
from perf_callbacks.kernel.settings.config import ConfigError, printable
from perf_callbacks.report import recorded_run, run_card, run_list, run_title
from perf_callbacks.report.recorded_run import RecordedRun

NAME: str = "show"
SUMMARY: str = "show the card of a run that ended, goes on, hangs or was killed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.epilog = (
        "Reads files alone: the training isn't asked, and may run on another machine. Shows the newest run in DIR, or "
        "else the newest run below DIR. Exits with 2 if there is no run."
    )
    add_directory(parser)
    parser.add_argument("--all", action="store_true", help="show all runs in and below DIR, the newest first")
    parser.add_argument(
        "--json", action="store_true", help="print JSON: the state, the run and its summary with findings"
    )


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names the runs."""
    parser.add_argument(
        "directory",
        type=Path,
        nargs="?",
        default=Path(),
        metavar="DIR",
        help="output directory of a run, a directory above, or a journal (default: the working directory)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the card of the newest run, or of all runs."""
    top, locks = arguments.directory, read_locks()
    runs = below(top, locks) if arguments.all else _newest(top, locks)
    found = [_whole(one, locks) for one in runs] if top.is_dir() else runs
    if arguments.json:
        facts = [_facts(one) for one in found]
        print(json.dumps(facts if arguments.all else facts[0], indent=2, allow_nan=False))
    else:
        columns = terminal.columns()
        print("\n\n".join([run_card.render(one, columns) for one in found]))
    return 0


def below(top: Path, locks: Locks) -> list[RecordedRun]:
    """Read the lowest rank of all runs in and below a directory, newest first. Raise `ConfigError` if there is none."""
    unreadable: list[str] = []
    if top.is_dir():
        found = [
            one for folder in run_list.folders(top, unreadable) for one in _leads(files_of_lowest_rank(folder), locks)
        ]
    else:
        found = _leads(_named(top), locks)
    for path in unreadable:
        print(f"{printable(path)}: this directory can't be read", file=sys.stderr)
    if not found:
        raise ConfigError(f"{top}: no run in or below this directory. A run writes {FOLDER}/rank<k>.jsonl.")
    return recorded_run.merge(found)


def _newest(top: Path, locks: Locks) -> list[RecordedRun]:
    """Return the newest run in a directory, or else below the directory. Print the number of other runs."""
    here = [folder for folder in (top, top / FOLDER) if top.is_dir() and files_of_lowest_rank(folder)]
    direct = [one for folder in here for one in _leads(files_of_lowest_rank(folder), locks)]
    found = recorded_run.merge(direct) or below(top, locks)
    if len(found) > 1:
        print(f"{printable(str(top))}: the newest of {len(found):,} runs. All: perf-callbacks runs", file=sys.stderr)
    return found[:1]


def _leads(journals: Iterable[Path], locks: Locks) -> list[RecordedRun]:
    """Read the runs in the journals of a directory."""
    return recorded_run.gather([ends for journal in journals for ends in _ends(journal, locks)], unix_time())


def _ends(journal: Path, locks: Locks) -> list[FitEnds]:
    """Read the ends of a journal. Print a line if the journal can't be read."""
    try:
        found = read(journal, locks)
    except OSError as error:
        print(f"{printable(str(journal))}: {error.strerror or error}", file=sys.stderr)
        return []
    if not found:
        print(f"{printable(str(journal))}: no `run` record can be read", file=sys.stderr)
    return found


def _named(path: Path) -> list[Path]:
    try:
        return files(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


def files_of_lowest_rank(folder: Path) -> list[Path]:
    """List the journals of the lowest rank in a directory: a journal per writer."""
    try:
        found = [path for path in files(folder) if path.parent == folder]
    except OSError:
        return []
    rank = found[0].name.split(".")[0] if found else ""
    return [path for path in found if path.name.split(".")[0] == rank]


def _whole(found: RecordedRun, locks: Locks) -> RecordedRun:
    """Read the other ranks of a run."""
    known = {ends.journal for ends in found.ranks}
    run_id, others = found.lead.run.run_id, list[FitEnds]()
    for folder in dict.fromkeys([path.parent for path in sorted(known)]) if found.lead.run.world_size > 1 else ():
        journals = [path for path in files(folder) if path.parent == folder and path not in known]
        others += [ends for path in journals for ends in _ends(path, locks) if ends.run.run_id == run_id]
    return recorded_run.gather([*found.ranks, *others], found.now)[0]


def _facts(found: RecordedRun) -> dict[str, Any]:
    summary = found.summary
    return {
        "title": run_title.title(found.lead.run),
        **recorded_run.facts(found),
        "verdict": run_card.verdict(found) or None,
        "notes": [*run_card.notes(found)],
        "run": json.loads(pack(found.lead.run)),
        "summary": None if summary is None else json.loads(pack(summary)),
    }
