"""Search for runs in and below a directory."""

from collections.abc import Callable, Iterable
from pathlib import Path

from perf_callbacks.kernel.clock import unix_time
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.records import followed_journal
from perf_callbacks.kernel.records.journal_ends import FitEnds
from perf_callbacks.kernel.records.journal_file import FOLDER, files, files_of_lowest_rank
from perf_callbacks.kernel.records.signs_of_life import Locks, read_locks
from perf_callbacks.kernel.settings.config import ConfigError, printable
from perf_callbacks.report import recorded_run, run_list
from perf_callbacks.report.recorded_run import RecordedRun


class RunReader:
    """Finds runs, and reads the first and last records of their journals.

    `complain` gets a line about each directory or journal that can't be read.
    """

    def __init__(
        self,
        read: Callable[[Path, Locks], list[FitEnds]] = followed_journal.read,
        complain: Callable[[str], object] = str,
    ) -> None:
        self._read, self._complain = read, complain
        self._locks = read_locks()

    def refresh_locks(self) -> None:
        self._locks = read_locks()

    def below(self, top: Path) -> list[RecordedRun]:
        """The newest first, with only the lowest rank of each run.

        Raise `ConfigError` if there is no run, or if the system refuses access to the directory.
        """
        unreadable: list[str] = []
        runs = [run for journals in journals_below(top, unreadable) for run in self._leads(journals)]
        for path in unreadable:
            self._complain(f"{printable(path)}: this directory can't be read")
        if not runs:
            raise ConfigError(f"{top}: no run in or below this directory. A run writes {FOLDER}/rank<k>.jsonl.")
        return recorded_run.merge(runs)

    def nearest(self, top: Path) -> list[RecordedRun]:
        """Like `below`, but runs below the directory only if there are none in it."""
        direct = [run for folder in (top, top / FOLDER) for run in self._leads(files_of_lowest_rank(folder))]
        return recorded_run.merge(direct) or self.below(top)

    def whole(self, run: RecordedRun) -> RecordedRun:
        journals_read = {ends.journal for ends in run.ranks}
        run_id, others = run.lead.run.run_id, list[FitEnds]()
        for folder in (
            dict.fromkeys([path.parent for path in sorted(journals_read)]) if run.lead.run.world_size > 1 else ()
        ):
            journals = [path for path in files(folder) if path.parent == folder and path not in journals_read]
            others += [ends for path in journals for ends in self._ends(path) if ends.run.run_id == run_id]
        return recorded_run.gather([*run.ranks, *others], run.now)[0]

    def again(self, run: RecordedRun) -> RecordedRun | None:
        """None if the run is gone."""
        run_id = run.lead.run.run_id
        fits = [ends for rank in run.ranks for ends in self._ends(rank.journal) if ends.run.run_id == run_id]
        return recorded_run.gather(fits, unix_time())[0] if fits else None

    def _leads(self, journals: Iterable[Path]) -> list[RecordedRun]:
        return recorded_run.gather([ends for journal in journals for ends in self._ends(journal)], unix_time())

    def _ends(self, journal: Path) -> list[FitEnds]:
        """Print a line if the journal can't be read."""
        try:
            ends = self._read(journal, self._locks)
        except OSError as error:
            let_pass(error)
            self._complain(f"{printable(str(journal))}: {error.strerror or error}")
            return []
        if not ends:
            self._complain(f"{printable(str(journal))}: no `run` record can be read")
        return ends


def journals_below(top: Path, unreadable: list[str]) -> list[list[Path]]:
    """The lowest rank's journals of each directory, or a single journal.

    Raise `ConfigError` if the system refuses access. Directories that can't be read are added to `unreadable`.
    """
    try:
        if top.is_dir():
            return [files_of_lowest_rank(folder) for folder in run_list.folders(top, unreadable)]
        return [files(top)]
    except OSError as error:
        raise ConfigError(f"{top}: {error.strerror or error}") from error
