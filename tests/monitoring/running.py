"""Programs that the tests run: servers, the exporter, Prometheus. Each listens on loopback, in a private folder, and ends with
its block, or with this process."""

import contextlib
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import redis

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "clients/python/tests"))
from servers import free_ports  # noqa: E402

FILES = ROOT / "monitoring"
DOCUMENT = (ROOT / "docs/monitoring.md").read_text()
MODULE = os.environ["REDIS_RL_MODULE"]
PROMETHEUS = os.environ["REDIS_RL_PROMETHEUS"]
PROMTOOL = os.environ["REDIS_RL_PROMTOOL"]
EXPORTER = os.environ["REDIS_RL_EXPORTER"]
# The programs of all servers to test on.
SERVERS = os.environ["REDIS_RL_SERVERS"].split("\n")

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def eventually(condition, seconds=120, what="a condition"):
    """Waits until the condition holds, and returns its value. The limit is generous: a busy machine must not fail a test."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.05)


@contextlib.contextmanager
def process(command, folder, environment=None):
    """Runs a program, whose output goes to the file `output` in the folder. Also ends when this process is killed."""
    environment = environment or {name: value for name, value in os.environ.items() if not name.startswith("REDIS_")}
    with open(folder / "output", "w") as output:
        dies = lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        command = list(map(str, command))
        child = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output, preexec_fn=dies)
        try:
            yield child
        finally:
            child.kill()
            child.wait()


def started(child, folder, is_up):
    """Waits until a program answers. Fails if it has ended."""
    eventually(lambda: child.poll() is not None or is_up(), what=f"{child.args[0]} to answer")
    assert child.poll() is None, f"{child.args} did not start:\n{(folder / 'output').read_text()}"


# Calls programs on this machine directly, also where a proxy is set.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def http(port, path, **query):
    url = f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(query)}"
    with DIRECT.open(url, timeout=60) as answer:
        return answer.read().decode()


def answers_http(port, path):
    try:
        http(port, path)
        return True
    except OSError:
        return False


def configuration():
    """The configuration with the exporter's user, as the document shows it."""
    [block] = [block for block in re.findall(r"```conf\n(.*?)```", DOCUMENT, re.DOTALL) if "user exporter" in block]
    assert "loadmodule /path/to/libredis_rl.so\n" in block
    return block


class Server:
    def __init__(self, port, child):
        self.port = port
        self.child = child
        self.address = f"127.0.0.1:{port}"
        self.client = redis.Redis(port=port, retry=None, decode_responses=True)

    def call(self, *arguments):
        return self.client.execute_command(*arguments)

    def try_call(self, *arguments):
        with contextlib.suppress(redis.RedisError):
            self.call(*arguments)

    def info_rl(self):
        """The fields of `INFO rl`, as text."""
        return dict(line.split(":", 1) for line in self.info("rl").split("\r\n") if ":" in line)

    def info(self, *section):
        """What `INFO` replies, as text."""
        return self.raw("INFO", *section).decode()

    def raw(self, *arguments):
        """A reply as it is, which the client does not parse."""
        connection = redis.Connection(port=self.port)
        try:
            connection.send_command(*arguments)
            return connection.read_response()
        finally:
            connection.disconnect()


@contextlib.contextmanager
def server(folder, *options, program=SERVERS[0], replaced=()):
    """A server with the document's configuration, in which each pair of `replaced` is replaced."""
    [port] = free_ports(1)
    folder = folder / f"server-{port}"
    folder.mkdir()
    # A path with a space would end the line's argument.
    (folder / "rl.so").symlink_to(MODULE)
    text = configuration().replace("/path/to/libredis_rl.so", "./rl.so")
    for old, new in replaced:
        assert old in text, old
        text = text.replace(old, new)
    (folder / "server.conf").write_text(text)
    command = [program, "server.conf", "--port", port, "--bind", "127.0.0.1", "--save", "", *options]
    with process(command, folder) as child:
        server = Server(port, child)

        def is_up():
            try:
                return server.client.ping()
            except redis.RedisError:
                return False

        started(child, folder, is_up)
        with server.client:
            yield server


def environment_of_exporter():
    """The settings of the exporter, as a service manager reads them."""
    lines = (FILES / "prometheus-redis-exporter").read_text().splitlines()
    settings = [re.fullmatch(r'([A-Z_]+)="(.*)"', line) for line in lines if line and not line.startswith("#")]
    assert all(settings), lines
    return {setting[1]: setting[2] for setting in settings}


@contextlib.contextmanager
def exporter(folder):
    """The exporter with the file of settings. Yields its port."""
    [port] = free_ports(1)
    settings = environment_of_exporter()
    replaced = {"REDIS_EXPORTER_SCRIPT": FILES / "redis-rl.lua", "REDIS_EXPORTER_WEB_LISTEN_ADDRESS": f"127.0.0.1:{port}"}
    assert settings.keys() >= replaced.keys()
    settings.update({name: str(value) for name, value in replaced.items()})
    folder = folder / f"exporter-{port}"
    folder.mkdir()
    with process([EXPORTER, *settings.pop("ARGS").split()], folder, settings) as child:
        started(child, folder, lambda: answers_http(port, "/"))
        yield port


NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'


def scraped(exporter, server):
    """What the exporter shows of a server: a list of metrics, each with its name, its labels and its value."""
    metrics = []
    for line in http(exporter, "/scrape", target=f"redis://{server.address}").split("\n"):
        if not line or line.startswith("#"):
            continue
        metric = re.fullmatch(rf"({NAME})(?:\{{((?:{LABEL},?)*)\}})? (\S+)", line)
        assert metric, f"not in the text format: {line}"
        unescaped = lambda value: re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], value)
        labels = {name: unescaped(value) for name, value in re.findall(LABEL, metric[2] or "")}
        metrics.append((metric[1], labels, float(metric[5])))
    return metrics


def script_values(exporter, server):
    """The results of the script, by key."""
    values = [(labels["key"], value) for name, labels, value in scraped(exporter, server) if name == "redis_script_values"]
    assert len(dict(values)) == len(values)
    return dict(values)
