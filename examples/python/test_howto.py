"""Runs the programs in docs/howto.md, and the failover of docs/operations.md. Only the addresses of the servers are replaced."""

import asyncio
import concurrent.futures
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import httpx
import pytest
import redis
from fastapi.testclient import TestClient
from redis.sentinel import Sentinel

from conftest import MODULE, PATIENCE, eventually, free_ports, inspect, is_up
from redis_rl import WrongType
from test_readme import ROOT, programs, run

FLASK, FASTAPI, PARTNER, ALL, SENTINEL = programs("docs/howto.md")
[FAILOVER] = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/operations.md").read_text(), re.DOTALL)


def started(folder, program, socket, timeout=PATIENCE):
    """Runs a program with the server at this socket. On a busy machine a reply may take longer."""
    [connect] = re.findall(r"Limits\((redis(?:\.asyncio)?\.Redis)\(\)", program)
    here = f"Limits({connect}()"
    return run(folder, program, here, f"Limits(timeout={timeout}, connect_timeout={timeout}, client={connect}(unix_socket_path={socket!r})")


def check_headers(get):
    """Checks the headers of a limit of 10 per minute. `get` makes one request."""
    for made in range(1, 11):
        response = get()
        assert response.status_code == 200
        assert response.headers["RateLimit-Policy"] == '"api";q=10;w=60'
        remaining, seconds = map(int, re.fullmatch(r'"api";r=(\d+);t=(\d+)', response.headers["RateLimit"]).groups())
        # On a slow machine, units come back in between.
        assert remaining >= 10 - made and 0 < seconds <= 6 * made
        assert "Retry-After" not in response.headers
    for _ in range(10):
        response = get()
        if response.status_code == 429:
            break
    assert response.status_code == 429
    seconds = int(response.headers["Retry-After"])
    assert 0 < seconds <= 6
    assert response.headers["RateLimit"] == f'"api";r=0;t={seconds}'


def test_flask(tmp_path, socket):
    names = started(tmp_path, FLASK, socket)
    check_headers(lambda: names["app"].test_client().get("/"))
    assert inspect(redis.Redis(unix_socket_path=socket), "api:address:127.0.0.1")["limit"] == 10


def test_fastapi(tmp_path, socket):
    names = started(tmp_path, FASTAPI, socket)
    with TestClient(names["app"]) as client:
        check_headers(lambda: client.get("/"))
        client.portal.call(names["limits"].aclose)
    assert inspect(redis.Redis(unix_socket_path=socket), "api:address:testclient")["limit"] == 10


@pytest.mark.parametrize("program", [FLASK, FASTAPI])
def test_the_request_passes_if_redis_is_down(tmp_path, dead_socket, program):
    names = started(tmp_path, program, dead_socket, 0.3)
    client = names["app"].test_client() if program is FLASK else TestClient(names["app"])
    response = client.get("/")
    assert response.status_code == 200 and "RateLimit" not in response.headers


# More requests at the same time than a client has connections.
FLOOD = 300


def check_flood(socket, flood):
    """`flood` makes requests at the same time, and returns their statuses. As many are let through as the limit allows."""
    client = redis.Redis(unix_socket_path=socket)
    before = client.info("rl")["rl_gcra_granted"]
    statuses = flood()
    granted = client.info("rl")["rl_gcra_granted"] - before
    assert len(statuses) == FLOOD and sorted(set(statuses)) == [200, 429]
    assert statuses.count(200) == granted >= 10 and len(client.keys("api:*")) == 1


def test_a_flood_of_requests_to_flask(tmp_path, socket):
    app = started(tmp_path, FLASK, socket)["app"]

    def flood():
        with concurrent.futures.ThreadPoolExecutor(FLOOD) as threads:
            return list(threads.map(lambda _: app.test_client().get("/").status_code, range(FLOOD)))

    check_flood(socket, flood)


def test_a_flood_of_requests_to_fastapi(tmp_path, socket):
    names = started(tmp_path, FASTAPI, socket)

    async def flood():
        transport = httpx.ASGITransport(names["app"])
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as web:
            answers = await asyncio.gather(*(web.get("/") for _ in range(FLOOD)))
        await names["limits"].aclose()
        return [answer.status_code for answer in answers]

    check_flood(socket, lambda: asyncio.run(flood()))


def test_four_processes(tmp_path, socket):
    client = redis.Redis(unix_socket_path=socket)
    before = client.info("rl")
    program = tmp_path / "program.py"
    program.write_text(PARTNER.replace("redis.Redis(", f"redis.Redis(unix_socket_path={socket!r}"))
    start = client.time()
    command = [sys.executable, "-B", program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment
    ) as processes:
        try:
            # The connection of a process that waits breaks, as in a restart of the server. It stands in line again.
            waiting = lambda: [each["id"] for each in client.client_list() if "b" in each["flags"]]
            eventually(waiting)
            client.client_kill_filter(_id=waiting()[0])
            output = processes.communicate(timeout=120)[0]
        finally:
            # All four, which would otherwise try again for ever.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(processes.pid, signal.SIGKILL)
    end = client.time()
    assert processes.returncode == 0
    assert sorted(map(int, re.findall(r"job (\d+) calls", output))) == list(range(24))
    after = client.info("rl")
    assert after["rl_slide_granted"] - before["rl_slide_granted"] == 24
    assert after["rl_waits_abandoned"] - before["rl_waits_abandoned"] <= 1
    assert after["rl_waits"] > before["rl_waits"] and after["rl_wait_timeouts"] == before["rl_wait_timeouts"]
    # 24 grants of at most 5 in any second take at least 4 seconds by the server's clock.
    assert end[0] + end[1] / 1e6 - start[0] - start[1] / 1e6 > 4


def test_a_user_and_an_organisation(tmp_path, socket, capsys):
    client = redis.Redis(unix_socket_path=socket)
    started(tmp_path, ALL, socket)
    assert capsys.readouterr().out.startswith("go on {'RateLimit-Policy': '\"{acme}user\";q=10;w=60, ")
    client.execute_command("RL.SLIDE", "{acme}org:all", 100, 60, "COST", 99)
    started(tmp_path, ALL, socket)
    assert re.match(r"retry in \d+\.\d+ seconds \{", capsys.readouterr().out)
    assert (inspect(client, "{acme}org:all")["used"], inspect(client, "{acme}user:42")["used"]) == (100, 1)


@pytest.fixture
def sentinel_port(tmp_path):
    """The port of a sentinel that watches a primary and a replica, `mymaster`; and the processes."""
    server = os.environ.get("REDIS_RL_SERVER", "redis-server")
    primary, replica, sentinel = free_ports(3)
    processes = {}

    def start(port, *options, config=()):
        folder = tmp_path / str(port)
        folder.mkdir()
        # Sentinel makes a server rewrite its configuration, and Redis then writes the module's path without quotes. So this
        # path, a link, has no space.
        (folder / "rl.so").symlink_to(MODULE)
        (folder / "conf").write_text("\n".join([f"port {port}", "bind 127.0.0.1", f"dir {folder}", *config, ""]))
        with open(folder / "log", "w") as log:
            processes[port] = subprocess.Popen([server, "conf", *options], stdout=log, cwd=folder)
        eventually(lambda: processes[port].poll() is not None or is_up(port=port))
        assert processes[port].poll() is None, pathlib.Path(log.name).read_text()

    try:
        with_module = ["save ''", "loadmodule ./rl.so"]
        start(primary, config=with_module)
        start(replica, config=[*with_module, f"replicaof 127.0.0.1 {primary}", "repl-diskless-sync-delay 0"])
        watched = [f"sentinel monitor mymaster 127.0.0.1 {primary} 1", "sentinel down-after-milliseconds mymaster 600000"]
        start(sentinel, "--sentinel", config=[*watched, "sentinel failover-timeout mymaster 5000"])
        asks = redis.Redis(port=sentinel, decode_responses=True)
        replicas = lambda: asks.execute_command("SENTINEL REPLICAS", "mymaster")
        eventually(lambda: any(each["master-link-status"] == "ok" for each in replicas()), 60)
        yield sentinel, processes[primary], primary, replica
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def test_behind_sentinel(tmp_path, sentinel_port):
    sentinel, process, primary, replica = sentinel_port
    names = run(tmp_path, SENTINEL, "26379", str(sentinel))
    # On a busy machine a call may take longer than the time-out, and then gets no decision.
    decision = lambda: eventually(lambda: names["take"]("key"))
    assert 2 <= [decision().remaining for _ in range(8)][-1] < 8
    old, new = (redis.Redis(port=port) for port in (primary, replica))
    # A primary with too few replicas refuses to grant. Errors of another kind are those of the program.
    old.config_set("min-replicas-to-write", 2)
    with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
        old.execute_command("RL.GCRA", "key", 10, 60)
    assert names["take"]("key") is None
    old.config_set("min-replicas-to-write", 0)
    old.lpush("api:list", "element")
    with pytest.raises(WrongType):
        names["take"]("list")
    eventually(lambda: inspect(new, "api:key") and old.dump("api:key") == new.dump("api:key"))
    process.kill()
    process.wait()
    assert names["take"]("key") is None
    # Until now, a server that is slow on a busy machine does not count as down.
    redis.Redis(port=sentinel).execute_command("SENTINEL SET", "mymaster", "down-after-milliseconds", 500)
    # The new primary has the eight units in use, less those that have come back meanwhile.
    after = eventually(lambda: names["take"]("key"), 120)
    assert after.limit == 10 and after.remaining < 9
    assert new.role()[0] == b"master"


LIMIT = 10_000_000


class Caller(threading.Thread):
    """Calls a limiter through a sentinel, one call after the other, until `ended` is set. Counts what is granted."""

    def __init__(self, sentinel, ended, timeout):
        super().__init__()
        sentinels = Sentinel([("127.0.0.1", sentinel)], socket_timeout=20)
        self.client = sentinels.master_for("mymaster", socket_timeout=timeout, retry=None)
        self.ended, self.granted, self.unknown, self.failure = ended, 0, 0, None

    def run(self):
        try:
            while not self.ended.is_set():
                try:
                    self.granted += self.client.execute_command("RL.FIXED", "key", LIMIT, "1d")[0]
                except (redis.ConnectionError, redis.TimeoutError):
                    # The server may have executed the call.
                    self.unknown += 1
                    self.ended.wait(0.01)
                except redis.ReadOnlyError:
                    self.ended.wait(0.01)
        except Exception as failure:
            self.failure = failure
        finally:
            self.client.close()


def test_a_planned_failover_loses_no_grant(tmp_path, sentinel_port):
    sentinel, _, primary, replica = sentinel_port
    old, new = (redis.Redis(port=port) for port in (primary, replica))
    ended = threading.Event()
    # Some wait for a reply for as long as the pause lasts, and longer.
    callers = [Caller(sentinel, ended, timeout) for timeout in (0.5, 0.5, 60, 60)]
    granted = lambda: sum(caller.granted for caller in callers)
    try:
        for caller in callers:
            caller.start()
        eventually(lambda: granted() > 1000, 60)
        lines = FAILOVER.replace("-p 26379", f"-p {sentinel}").replace("-p 6379", f"-p {primary}")
        assert FAILOVER.count("-p 26379") == FAILOVER.count("-p 6379") == 1
        printed = subprocess.check_output(["bash", "-euc", lines], text=True).splitlines()
        # The replies of SENTINEL FAILOVER, REPLICAOF and CLIENT UNPAUSE, and both addresses.
        assert printed == ["OK"] * 3 + ["before: 127.0.0.1", f"{primary}, now: 127.0.0.1", str(replica)]
        assert old.role()[0] == b"slave" and new.role()[0] == b"master"
        before = granted()
        eventually(lambda: granted() > before + 1000, 60)
    finally:
        ended.set()
        for caller in callers:
            caller.join()
    assert [caller.failure for caller in callers] == [None] * len(callers)
    assert old.role()[0] == b"slave"
    used = LIMIT - new.execute_command("RL.PEEK", "FIXED", "key", LIMIT, "1d")[2]
    assert granted() <= used <= granted() + sum(caller.unknown for caller in callers)
