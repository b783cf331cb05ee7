"""Runs the programs in docs/clients.md and in docs/choosing.md. Only the address of the server is replaced."""

import pathlib
import re
import runpy

from conftest import inspect

ROOT = pathlib.Path(__file__).resolve().parents[2]


def programs(document):
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


[WAIT] = programs("docs/clients.md")
[UNTIL] = programs("docs/choosing.md")


def run(folder, program, here, there):
    assert here in program
    file = folder / "program.py"
    file.write_text(program.replace(here, there))
    return runpy.run_path(file)


def test_the_ends_of_the_day_and_the_month(tmp_path, socket):
    names = run(tmp_path, UNTIL, "redis.Redis(", f"redis.Redis(unix_socket_path={socket!r}")
    day, month = (1000 * names["midnight"](names[name]) for name in ("tomorrow", "next_month"))
    for key, end in (("quota:42", day), ("{quota:42}:day", day), ("{quota:42}:month", month)):
        facts = inspect(names["client"], key)
        assert (facts["window_end_ms"], facts["used"]) == (end, 1)
    names["client"].close()


def test_the_wait(tmp_path, socket):
    names = run(tmp_path, WAIT, "redis.Redis(", f"redis.Redis(unix_socket_path={socket!r}, ")
    assert (names["granted"], names["limit"], names["remaining"]) == (1, 5, 4)
    assert names["client"].get_connection_kwargs()["socket_timeout"] > 30
    names["client"].close()
