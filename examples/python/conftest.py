"""The servers are those of the tests of the client package, and the programs import the package from its folder."""

import contextlib
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
CLIENT = HERE.parents[1] / "clients/python"
sys.path[:0] = [str(HERE), str(CLIENT / "src"), str(CLIENT / "tests")]

from servers import *  # noqa: E402, F403


@contextlib.contextmanager
def killed_in_the_middle(program, *arguments):
    """Runs a program in a separate process until it prints that it is in the middle. Yields a function that kills it."""
    command = [sys.executable, "-B", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "in the middle\n"

        def kill():
            process.kill()
            process.wait()

        yield kill
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def server_s(client):
    """The server's clock, in seconds."""
    seconds, micros = client.time()
    return seconds + micros / 1_000_000
