"""Starts a server with the module, and makes sure that it ends."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from .connection import call

HERE = Path(__file__).resolve().parent
# What the package was built for: {"version", "server", "machine", "glibc"}.
BUILD = json.loads((HERE / "build.json").read_text())


class ServerError(Exception):
    """The server can't be started. The message says why."""


def packed(name: str) -> str:
    """The path of a file of the package, if this machine can run it."""
    needs = f"the server in this package is for Linux on {BUILD['machine']} with glibc {BUILD['glibc']} or newer. Name others that " \
        "run here: --server PATH --module PATH, or REDIS_RL_SERVER and REDIS_RL_MODULE."
    if platform.system() != "Linux" or platform.machine() != BUILD["machine"]:
        raise ServerError(f"This is {platform.system()} on {platform.machine()}, and {needs}")
    try:
        libc = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()[1]
    except (IndexError, OSError, ValueError):
        raise ServerError(f"This system has no glibc (Alpine has musl), and {needs}") from None
    if [int(part) for part in libc.split(".")[:2]] < [int(part) for part in BUILD["glibc"].split(".")]:
        raise ServerError(f"This system has glibc {libc}, which is too old: {needs}")
    return str(HERE / name)


def module_path() -> str:
    """The path of the module, for `loadmodule` of another server."""
    return os.environ.get("REDIS_RL_MODULE") or packed("libredis_rl.so")


class Server:
    """A server with the module, which saves nothing, and listens on the loopback interface.

    `port` is 0 for a free one, or None for a socket only. `dir` keeps the server's data in this folder. `server` and `module` name
    others than those of the package. Other arguments are the server's own: `Server("--maxmemory", "100mb")`.
    """

    def __init__(self, *arguments: str, port: int | None = 0, dir: str | os.PathLike[str] | None = None,
                 server: str | None = None, module: str | None = None) -> None:
        self._arguments, self._port, self._dir, self._server, self._module = arguments, port, dir, server, module
        self._watcher: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        if self._watcher:
            raise ServerError("This server has been started already.")
        server = self._server or os.environ.get("REDIS_RL_SERVER") or packed("valkey-server")
        module = Path(self._module or module_path()).absolute()
        data = str(Path(self._dir).absolute()) if self._dir is not None else ""
        port = {0: "any", None: "0"}.get(self._port) or str(self._port)
        self._pid = os.getpid()
        watcher = self._watcher = subprocess.Popen(
            ["sh", str(HERE / "watch.sh"), data, port, server, "--save", "60 1" if data else "",
             "--loadmodule", str(module), *self._arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors="backslashreplace", start_new_session=True)
        assert watcher.stdout
        try:
            said = watcher.stdout.readline()
            if not said.startswith("ready "):
                raise ServerError("The server did not start. " + (said + watcher.stdout.read()).rstrip())
        except BaseException:
            self.stop()
            raise
        _, port, self.folder = said.rstrip("\n").split(" ", 2)
        self.port, self.socket = int(port) or None, f"{self.folder}/socket"
        return self

    def stop(self) -> None:
        """Ends the server, and waits until its folder is gone. A process that was forked from the one that started it ends nothing."""
        watcher, self._watcher = self._watcher, None
        if not watcher or self._pid != os.getpid():
            return
        try:
            # Processes that were forked have the pipe, too, so closing it is not enough. This waits until the watcher has ended.
            watcher.communicate("\n")
        except BrokenPipeError:
            watcher.wait()

    @property
    def url(self) -> str:
        """The address for a client: redis://127.0.0.1:<port>, or unix://<path>."""
        return f"redis://127.0.0.1:{self.port}" if self.port else f"unix://{quote(self.socket)}"

    def call(self, *words: object) -> Any:
        """Calls a command on a new connection: `server.call("RL.GCRA", "user:7", 10, 60)`."""
        return call(f"unix://{quote(self.socket)}", *words)

    def flush(self) -> None:
        """Removes all keys, and what `RL.TOP` has counted."""
        self.call("FLUSHALL")
        self.call("RL.TOP", "RESET")

    def wait(self) -> None:
        """Waits until the server ends by itself."""
        assert self._watcher
        self._watcher.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
