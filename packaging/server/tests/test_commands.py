"""The command redis-rl, that of Python and that of Node.js: both do the same."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

DECISION = "granted   {}\nlimit     10\nremaining {}\nwait_ms   0\nreset_ms  {}\n"


def run(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def refused(*words):
    done = run(*words)
    assert done.returncode == 1 and done.stderr.startswith("redis-rl: ") and "Traceback" not in done.stderr, done
    return done.stderr


@contextmanager
def serving(*words):
    """Runs `redis-rl serve`. Gives the process, what it said, and the port."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        said = ""
        while "Ctrl-C" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        yield process, said, re.search(r"listens on redis://127\.0\.0\.1:(\d+)", said)[1]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_a_first_decision(command, private):
    with serving(command, "serve", "--port", "0") as (process, said, port):
        assert "for trials and tests, not for production" in said
        assert f"redis-rl call --port {port} RL.GCRA user:7 10 60" in said
        assert run(command, "call", "--port", port, "RL.GCRA", "user:7", "10", "60").stdout == DECISION.format(1, 9, 6000)
        url = f"redis://127.0.0.1:{port}"
        assert run(command, "call", "--url", url, "RL.PEEK", "GCRA", "user:8", "10", "60").stdout == DECISION.format(1, 10, 0)
        both = run(command, "call", "--url", url, "RL.ALL", "2", "a", "b", "FIXED", "10", "60", "FIXED", "10", "60")
        assert both.stdout == "1\n0\n" + "    granted 1, limit 10, remaining 9, wait_ms 0, reset_ms 60000\n" * 2
        assert run(command, "call", "--port", port, "GET", "none").stdout == "(nil)\n"
        assert "wrong number of arguments" in refused(command, "call", "--port", port, "RL.GCRA", "--limit")
        assert f"Port {port} is in use" in refused(command, "serve", "--port", port)
    assert process.returncode == 0
    assert "`redis-rl serve` starts a server" in refused(command, "call", "--port", port, "PING")


def test_without_a_port_it_takes_the_next_free_one(command, private):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 6379))
            taken.listen()
        except OSError:
            pass  # Another program has it, which is as good.
        with serving(command, "serve") as (_, said, port):
            assert "Port 6379 is in use" in said and 6379 < int(port) < 6399


def test_a_folder_of_its_own_keeps_the_data(command, private, tmp_path):
    folder = tmp_path / "data of a trial"
    for remaining in (9, 8):
        with serving(command, "serve", "--port", "0", "--dir", str(folder)) as (_, _, port):
            assert f"remaining {remaining}\n" in run(command, "call", "--port", port, "RL.FIXED", "key", "10", "3600").stdout
    assert [path.name for path in folder.iterdir()] == ["dump.rdb"]


def test_a_server_that_is_killed_with_its_parent_leaves_nothing(command, private):
    with serving(command, "serve", "--port", "0") as (process, _, port):
        assert len(list(private.iterdir())) == 1
        process.kill()
        process.wait()


@pytest.mark.parametrize("options, message", [("ro", "Read-only file system"), ("size=4k", "No space left on device")])
@pytest.mark.parametrize("what", ["data", "folder"])
def test_a_folder_that_can_not_be_written(command, private, tmp_path, options, message, what):
    """On a file system of its own, which only root can mount: also root can't write there."""
    disk = tmp_path / "disk"
    disk.mkdir()
    dir = ["--dir", str(disk)] if what == "data" else []
    script = 'mount -t tmpfs -o "$1" none "$2"; head -c 9999 /dev/zero >"$2/fill" || true; [ $3 = data ] || export TMPDIR="$2"; shift 3; "$@" || ls -A "$0"'
    mounted = run("unshare", "--mount", "sh", "-ec", script, str(disk), options, str(disk), what, command, "serve", *dir)
    said = mounted.stderr.split("redis-rl: ")[1]
    assert message in said and str(disk) in said and mounted.stdout in ("", "fill\n")


@pytest.mark.parametrize("changed, message", [({"glibc": "9.9"}, "which is too old"), ({"machine": "riscv64"}, "for Linux on riscv64")])
def test_another_machine(command, private, tmp_path, monkeypatch, changed, message):
    """A copy of the package that says that it was built for another machine."""
    module = Path(run(command, "module-path").stdout.strip())
    copy = tmp_path / "copy" / "redis_rl_server"
    shutil.copytree(module.parent, copy)
    build = json.loads((copy / "build.json").read_text())
    (copy / "build.json").write_text(json.dumps(build | changed))
    monkeypatch.setenv("PYTHONPATH", str(copy.parent))
    words = ["node", str(copy / "cli.js")] if (copy / "cli.js").exists() else [str(Path(command).with_name("python")), "-c", "from redis_rl_server.cli import main; main()"]
    for subcommand in ("serve", "module-path"):
        said = refused(*words, subcommand)
        assert message in said and "--server PATH" in said
    # The program of the package is named, as that of any other server would be.
    with serving(*words, "serve", "--port", "0", "--server", str(module.with_name("valkey-server")), "--module", str(module)) as (_, _, port):
        assert run(*words, "call", "--port", port, "PING").stdout == "PONG\n"


def test_a_wrong_server_or_module(command, private, tmp_path):
    assert "There is no program no-such-server" in refused(command, "serve", "--server", "no-such-server")
    assert "no-such-module.so" in refused(command, "serve", "--port", "0", "--module", "no-such-module.so")
    (tmp_path / "wrong.so").write_text("no library")
    assert "wrong.so failed to load" in refused(command, "serve", "--port", "0", "--module", str(tmp_path / "wrong.so"))
    assert "The server did not start." in refused(command, "serve", "--port", "0", "--server", "false")


def test_versions(command):
    said = run(command, "--version").stdout
    assert re.fullmatch(r"redis-rl \d+\.\d+\.\d+, Valkey \d+\.\d+\.\d+\n", said), said
    assert os.access(run(command, "module-path").stdout.strip(), os.X_OK)
