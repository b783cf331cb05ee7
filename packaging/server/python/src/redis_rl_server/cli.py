"""The command redis-rl."""

import argparse
import signal
import sys
from typing import Any

from .connection import ReplyError, call
from .server import BUILD, Server, ServerError, module_path

LABELS = ["granted", "limit", "remaining", "wait_ms", "reset_ms"]


def shown(reply: Any, labels: bool, indent: str = "") -> str:
    """A reply as lines. `labels`: five integers are those of a decision."""
    if not isinstance(reply, list):
        return "\n".join(indent + line for line in ("(nil)" if reply is None else str(reply)).split("\n"))
    if labels and len(reply) == 5 and all(isinstance(item, int) for item in reply):
        pairs = zip(LABELS, reply)
        return indent + (", ".join(f"{label} {item}" for label, item in pairs) if indent
                         else "\n".join(f"{label:10}{item}" for label, item in pairs))
    return "\n".join(shown(item, labels, indent + "  " * isinstance(item, list)) for item in reply) or f"{indent}(empty)"


def serve(port: int | None, **options: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    # Like `make run`: port 6379, or the next free one.
    for chosen in range(6379, 6399) if port is None else [port]:
        try:
            server = Server(port=chosen, **options).start()
            break
        except ServerError as error:
            if port is not None or chosen == 6398 or " is in use" not in str(error):
                raise
            print(error, "Trying the next one.")
    with_port = "" if server.port == 6379 else f" --port {server.port}"
    print(f"""A server with redis-rl {BUILD['version']} listens on {server.url}: for trials and tests, not for production.
In another terminal, try:

  redis-rl call{with_port} RL.GCRA user:7 10 60      # ten at once, then one every 6 seconds
  redis-rl call{with_port} RL.SLIDE partner 5 1      # never more than 5 in any second
  redis-rl call{with_port} RL.HELP

Ctrl-C stops the server, and {'saves' if options['dir'] else 'removes'} its data.""", flush=True)
    try:
        server.wait()
    finally:
        server.stop()
    raise ServerError("The server has ended.")


def main() -> None:
    parser = argparse.ArgumentParser(prog="redis-rl", description="A server with redis-rl, for trials and tests, not for production.")
    parser.add_argument("--version", action="version", version=f"redis-rl {BUILD['version']}, {BUILD['server']}")
    commands = parser.add_subparsers(dest="command", required=True)
    serving = commands.add_parser("serve", help="start a server, until Ctrl-C")
    serving.add_argument("--port", type=int, help="this port, 0 for any free one (default: 6379, or the next free one)")
    serving.add_argument("--dir", help="keep the server's data in this folder (default: they are removed)")
    serving.add_argument("--server", metavar="PATH", help="this server, Redis 7.0.5 or Valkey 7.2 or newer, instead of the package's")
    serving.add_argument("--module", metavar="PATH", help="this library instead of the package's")
    calling = commands.add_parser("call", help="call a command: redis-rl call RL.GCRA user:7 10 60")
    calling.add_argument("--port", type=int, default=6379)
    calling.add_argument("--url", help="such as redis://:password@host:6379 or unix:///path")
    calling.add_argument("name", metavar="COMMAND")
    calling.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT")
    commands.add_parser("module-path", help="print the path of the module, for loadmodule")
    given = parser.parse_args()
    # A call with BLOCK may wait for long. Ctrl-C ends it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        if given.command == "serve":
            serve(given.port, dir=given.dir, server=given.server, module=given.module)
        elif given.command == "module-path":
            print(module_path())
        else:
            reply = call(given.url or f"redis://127.0.0.1:{given.port}", given.name, *given.arguments)
            print(shown(reply, given.name.upper().startswith("RL.")))
    except (ServerError, ReplyError) as error:
        sys.exit(f"redis-rl: {error}")
    except OSError as error:
        sys.exit(f"redis-rl: No answer from {given.url or given.port}: {error}. `redis-rl serve` starts a server.")
