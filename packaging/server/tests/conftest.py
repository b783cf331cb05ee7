"""For the tests of the installed packages. REDIS_RL_COMMANDS names the two commands redis-rl, of Python and of Node.js."""

import os
import time
from pathlib import Path

import pytest

COMMANDS = os.environ["REDIS_RL_COMMANDS"].split(":")


@pytest.fixture(params=COMMANDS, ids=["python", "node"])
def command(request):
    return request.param


def left(folder):
    """The files in a folder, and the processes whose TMPDIR it is."""
    found = [str(path) for path in folder.iterdir()]
    for entry in Path("/proc").iterdir():
        try:
            if entry.name != str(os.getpid()) and f"TMPDIR={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return [what for what in found if what]


@pytest.fixture
def private(tmp_path, monkeypatch):
    """A private TMPDIR, with a space. After the test, nothing may be left there, and no process."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    # A process that was killed has not waited for its watcher.
    for _ in range(200):
        if not left(folder):
            return
        time.sleep(0.05)
    pytest.fail(f"left: {left(folder)}")
