"""A process that imports the modules that it is told, and forks for each line of JSON that it reads."""

import gc
import importlib
import json
import os
import signal
import sys
import types
from contextlib import suppress
from pathlib import Path


def main():
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no collection of a fork goes through all that was imported, or makes pages of its own for it
    statuses = {}

    def ended(*_):
        with suppress(ChildProcessError):
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                Path(statuses.pop(child[0])).write_text(str(child[1]))

    signal.signal(signal.SIGCHLD, ended)
    while line := sys.stdin.readline():
        request = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # until it is known whose status it is
        pid = os.fork()
        if not pid:
            become(request)
            return
        statuses[pid] = request["status"]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        print(pid, flush=True)


def become(request):
    """Be the process that was asked for; it ends as any other, with its last line and the interpreter's end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    for number, path in enumerate([os.devnull, *request["files"]]):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["directory"])
    script = request["script"]
    sys.argv = [script, *request["words"]]
    program = sys.modules["__main__"] = types.ModuleType("__main__")
    program.__file__ = script
    exec(compile(Path(script).read_text(), script, "exec"), vars(program))


if __name__ == "__main__":
    main()
