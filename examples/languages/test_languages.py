"""Runs the programs in docs/languages.md against a server with the module, and checks their output and the server's state.

The port, 6379, is replaced, and the folder of Predis. The short time-outs are made longer, except where they are tested: on a
busy machine a reply may take longer. Go and PHP programs get the lines around them that the document leaves out.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import redis

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples/python"))

from conftest import eventually, free_ports, inspect, running_server  # noqa: E402

DOCUMENT = (ROOT / "docs/languages.md").read_text()

# In the document's order: the name of a client, the language of its blocks, and the types of its errors, as in the table: that
# of WRONGTYPE, and that of READONLY. None: the client has no type for it.
CLIENTS = {
    "redigo": ("go", "redis.Error", "redis.Error"),
    "ioredis": ("js", "ReplyError", "ReplyError"),
    "node-redis": ("js", "SimpleError", "SimpleError"),
    "phpredis": ("php", "RedisException", "RedisException"),
    "Predis": ("php", None, None),
    "redis-py": ("python", "redis.exceptions.ResponseError", "redis.exceptions.ReadOnlyError"),
    "redis-rb": ("ruby", "Redis::CommandError", "Redis::CommandError"),
}
# What the document gives each client, for a call, a call with several limits, a wait, and a lease.
KINDS = ("call", "all", "wait", "lease")

# Long enough for a program to start, also on a busy machine.
PATIENCE_S = 120
# How many seconds each client waits at least: longer than its default time-out, which is 5 s in redis-py and redis-rb, and 60 s
# in PHP. There the test sets 2 s.
PHP_TIMEOUT_S = 2
WAITS_S = {"phpredis": PHP_TIMEOUT_S + 1, "Predis": PHP_TIMEOUT_S + 1, "redis-py": 6, "redis-rb": 6}
# The text in the programs that sets the longer time-out, and what is there without it.
TIMEOUTS = {
    "redigo": (", redis.DialReadTimeout(35*time.Second)", ""),
    "ioredis": ("commandTimeout: 35_000, ", ""),
    "node-redis": ("socketTimeout: 35_000, ", ""),
    "phpredis": ("$own->setOption(Redis::OPT_READ_TIMEOUT, 35);\n", ""),
    "Predis": (", 'read_write_timeout' => 35", ""),
    "redis-py": (", socket_timeout=35", ""),
    "redis-rb": (", read_timeout: 35", ""),
}

# The short time-outs of requests, and longer ones.
SHORT = {
    "go": (("200 * time.Millisecond", "200 * time.Second"), ("200*time.Millisecond", "200*time.Second")),
    "js": (("commandTimeout: 200", "commandTimeout: 200_000"), ("pause(200,", "pause(200_000,"), ("hold(200,", "hold(200_000,")),  # fmt: skip
    "php": ((" 0.2", " 200"), ("(0.2", "(200")),
    "python": (("timeout=0.2", "timeout=200"),),
    "ruby": (("timeout: 0.2", "timeout: 200"),),
}
# How long the server delays calls in the test of the short time-outs. It is longer than a program may take.
DELAY_S = 2 * PATIENCE_S

GO_PACKAGES = ("crypto/rand", "fmt", "log", "time", "github.com/gomodule/redigo/redis")


def blocks():
    """The blocks of the document that are programs: their language, their text, and whether they are run."""
    # The parts between fences are text and block in turn.
    parts = re.split(r"^```(.*)\n", DOCUMENT, flags=re.MULTILINE)
    for before, language, block in zip(parts[::4], parts[1::4], parts[2::4]):
        paragraph = re.sub("^#.*\n", "", before.strip().split("\n\n")[-1])
        yield language, block, not paragraph.startswith("Not run in tests:")


def programs():
    """The programs that are run: by client, and by kind."""
    texts = [(language, text) for language, text, is_run in blocks() if is_run and language != "bash"]
    expected = [language for language, *_ in CLIENTS.values() for _ in KINDS]
    assert [language for language, _ in texts] == expected, "docs/languages.md does not have these blocks in this order"
    texts = iter(text for _, text in texts)
    return {name: {kind: next(texts) for kind in KINDS} for name in CLIENTS}


PROGRAMS = programs()


class Program:
    """A program of the document that can be started, on this port. `change` replaces text in it."""

    def __init__(self, folder, client, kind, port, change=(), hurried=False):
        language, *_ = CLIENTS[client]
        text = PROGRAMS[client][kind]
        assert "6379" in text
        replaced = [("6379", str(port)), *change]
        replaced += [("'vendor/autoload.php'", "'Predis/autoload.php'")] if client == "Predis" else []
        short = [(here, there) for here, there in SHORT[language] if here in text]
        assert bool(short) == (kind in ("call", "lease")), f"the short time-outs of {client} in its {kind}"
        for here, there in replaced if hurried else [*replaced, *short]:
            assert here in text, f"{client} has no {here} in its {kind}"
            text = text.replace(here, there)
        self.environment = dict(os.environ)
        self.command = getattr(self, f"_{language}")(folder, text, client, kind)
        self.process = None

    def _go(self, folder, text, client, kind):
        used = "\n".join(f'\t"{package}"' for package in GO_PACKAGES if f"{package.split('/')[-1]}." in text)
        text = text.replace("log.Fatal(err)", 'log.Fatalf("%T: %v", err, err)')
        file = folder / "main.go"
        file.write_text(f"package main\n\nimport (\n{used}\n)\n\nfunc main() {{\n{text}}}\n")
        go = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOCACHE": str(ROOT / "target/languages/go")}
        subprocess.run(["go", "build", "-o", folder / "program", file], check=True, env={**self.environment, **go})
        return [folder / "program"]

    def _js(self, folder, text, client, kind):
        # Node.js looks for packages beside the program and above it.
        (folder / "node_modules").symlink_to(ROOT / "examples/node/node_modules")
        file = folder / "program.mjs"
        file.write_text(text)
        return ["node", file]

    def _php(self, folder, text, client, kind):
        file = folder / "program.php"
        file.write_text("<?php\n" + text)
        short = ["-d", f"default_socket_timeout={PHP_TIMEOUT_S}"] if kind == "wait" else []
        return ["php", *short, "-d", "display_errors=stderr", file]

    def _python(self, folder, text, client, kind):
        file = folder / "program.py"
        file.write_text(text)
        return [sys.executable, "-B", file]

    def _ruby(self, folder, text, client, kind):
        file = folder / "program.rb"
        file.write_text(text)
        return ["ruby", file]

    def start(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(list(map(str, self.command)), env=self.environment, **pipes)
        return self

    def end(self):
        """Ends its input and waits for its end. Returns its lines, its error output and its exit status."""
        output, errors = self.process.communicate(timeout=PATIENCE_S)
        return output.splitlines(), errors, self.process.returncode

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.communicate()


@pytest.fixture(scope="module")
def server():
    """A server on a port."""
    [port] = free_ports(1)
    with running_server("--port", port, "--bind", "127.0.0.1") as (_, socket), redis.Redis(unix_socket_path=socket, decode_responses=True) as admin:
        yield admin, port


@pytest.fixture
def make(server, tmp_path):
    """Makes a program for an empty server. Kills it at the end of the test."""
    admin, port = server
    admin.flushall()
    made = []

    def make(client, kind, change=(), **options):
        folder = tmp_path / f"{len(made)}"
        folder.mkdir()
        made.append(Program(folder, client, kind, port, change, **options))
        return made[-1]

    yield make
    for program in made:
        program.kill()


def run(program):
    lines, errors, status = program.start().end()
    assert status == 0, errors
    assert errors == ""
    return lines


def counts(admin):
    return admin.info("rl")


def test_each_block_is_run_or_says_why_not():
    assert [language for language, _, is_run in blocks() if not is_run] == ["go", "java", "java"]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_call_is_granted_and_then_denied(server, make, client):
    admin, _ = server
    call = make(client, "call")
    assert run(call) == ["granted 1, limit 10, remaining 9, reset in 6000 ms"]
    assert inspect(admin, "user:42")["used"] == 1
    # Takes all units, and a debt of 5 units, so that the wait is above 30 seconds: it does not depend on the time that passes.
    admin.execute_command("RL.GCRA", "user:42", 10, 60, "FORCE", 14)
    before = counts(admin)
    longest = admin.execute_command("RL.PEEK", "GCRA", "user:42", 10, 60)
    line, denial = run(call)
    shortest = admin.execute_command("RL.PEEK", "GCRA", "user:42", 10, 60)
    reset_ms = int(re.fullmatch(r"granted 0, limit 10, remaining 0, reset in (\d+) ms", line)[1])
    assert shortest[4] <= reset_ms <= longest[4]
    seconds = int(re.fullmatch(r"429, Retry-After: (\d+)", denial)[1])
    assert -(-shortest[3] // 1000) <= seconds <= -(-longest[3] // 1000)
    after = counts(admin)
    assert (after["rl_gcra_granted"], after["rl_gcra_denied"]) == (before["rl_gcra_granted"], before["rl_gcra_denied"] + 1)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_limit_of_0_gives_no_time_for_a_retry(make, client):
    ten, none = ("'10', '60'", "'0', '60'") if client == "node-redis" else ("10, 60", "0, 60")
    lines = run(make(client, "call", [(ten, none)]))
    assert lines == ["granted 0, limit 0, remaining 0, reset in 0 ms", "429, and a retry is never granted"]


# What the clients say after a time-out. Two of them name no reason.
TIMED_OUT = {
    "redigo": "i/o timeout",
    "ioredis": "Command timed out",
    "node-redis": "timed out",
    "phpredis": "socket error on read socket",
    "Predis": "Error while reading line from the server",
    "redis-py": "Timeout reading from",
    "redis-rb": "Redis::TimeoutError",
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_request_gives_up_after_its_short_time_out(server, make, client):
    admin, _ = server
    before = admin.info("stats")
    admin.client_pause(DELAY_S * 1000, all=False)
    try:
        paused = admin.time()[0]
        lines, errors, status = make(client, "call", hurried=True).start().end()
        assert lines == [] and status != 0
        assert TIMED_OUT[client] in errors
        assert admin.time()[0] < paused + DELAY_S, "the pause had ended"
    finally:
        admin.client_unpause()
    assert before["total_connections_received"] < admin.info("stats")["total_connections_received"], "it was connected"
    eventually(lambda: len(admin.client_list()) == 1)
    assert not admin.exists("user:42"), "a call whose connection was closed in the pause is not executed"


PREFIXES = {
    "phpredis": ("$reply = ", "$redis->setOption(Redis::OPT_PREFIX, 'app:');\n$reply = "),
    "Predis": ("Client($server)", "Client($server, ['prefix' => 'app:'])"),
}


@pytest.mark.parametrize("client", PREFIXES)
def test_php_adds_no_prefix_to_the_key(server, make, client):
    admin, _ = server
    run(make(client, "call", [PREFIXES[client]]))
    assert admin.keys() == ["user:42"]
    admin.flushall()
    run(make(client, "call", [("user:42", "app:user:42")]))
    assert admin.keys() == ["app:user:42"]


@pytest.mark.parametrize("client", CLIENTS)
def test_several_limits(server, make, client):
    admin, _ = server
    program = make(client, "all")
    assert run(program) == ["granted 1, wait 0 ms, remaining today 999"]
    admin.execute_command("RL.GCRA", "{user:42}:minute", 10, 60, "FORCE", 14)
    assert re.fullmatch(r"granted 0, wait \d{5} ms, remaining today 999", *run(program))
    assert inspect(admin, "{user:42}:day")["used"] == 1


def failed(program, kind, type_name):
    """Checks that a program ends with this error of the server, whose type has this name."""
    lines, errors, status = program.start().end()
    assert lines == [] and status != 0
    assert kind in errors
    assert type_name is None or type_name in errors, errors


@pytest.mark.parametrize("client", CLIENTS)
def test_an_error_is_no_denial(server, make, client):
    admin, port = server
    _, wrong_type, read_only = CLIENTS[client]
    for kind, keys in (("call", ["user:42"]), ("all", ["{user:42}:day"]), ("wait", ["partner-api"]), ("lease", ["converters"])):
        for key in keys:
            admin.rpush(key, "a list")
        failed(make(client, kind), "WRONGTYPE", wrong_type)
        for key in keys:
            assert admin.lrange(key, 0, -1) == ["a list"]
    admin.flushall()
    [nobody] = free_ports(1)
    admin.replicaof("127.0.0.1", nobody)
    try:
        # redis-py leaves out the first word, READONLY.
        failed(make(client, "call"), "You can't write against a read only replica", read_only)
    finally:
        admin.replicaof("NO", "ONE")
    # The document names the types.
    for name in {wrong_type, read_only} - {None}:
        assert f"`{name}`" in DOCUMENT or f"`{name.split('.')[-1]}`" in DOCUMENT


def waiter(admin):
    """The connection that waits, as CLIENT LIST shows it. Before, takes all units, and a debt, so that it goes on waiting: the
    next unit is free after at most 24 seconds, which is less than the wait of 30."""
    if admin.execute_command("RL.PEEK", "GCRA", "partner-api", 5, 60)[3] < 12_000:
        admin.execute_command("RL.GCRA", "partner-api", 5, 60, "FORCE", 1)
    waiting = [client for client in admin.client_list() if "b" in client["flags"]]
    assert len(waiting) <= 1
    return waiting[0] if waiting else None


def fill(admin):
    admin.execute_command("RL.GCRA", "partner-api", 5, 60, "FORCE", 6)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_wait_is_longer_than_the_default_time_out_and_is_charged_once(server, make, client):
    admin, _ = server
    wait = make(client, "wait")
    fill(admin)
    before = counts(admin)
    wait.start()
    eventually(lambda: waiter(admin), PATIENCE_S)
    connection = waiter(admin)["id"]
    eventually(lambda: int(waiter(admin)["idle"]) >= WAITS_S.get(client, 1), PATIENCE_S)
    assert waiter(admin)["id"] == connection
    after = counts(admin)
    forced = after["rl_gcra_granted"] - before["rl_gcra_granted"]
    admin.delete("partner-api")
    lines, errors, status = wait.end()
    assert (lines, errors, status) == (["our turn"], "", 0)
    assert inspect(admin, "partner-api")["used"] == 1
    after = counts(admin)
    changed = {name: after[name] - before[name] for name in after if name != "rl_version" and after[name] != before[name]}
    granted = forced + 1
    assert changed == {"rl_gcra_calls": granted, "rl_gcra_granted": granted, "rl_waits": 1}


@pytest.mark.parametrize("client", WAITS_S)
def test_without_the_time_out_the_client_gives_up_and_is_not_charged(server, make, client):
    admin, _ = server
    wait = make(client, "wait", [TIMEOUTS[client]])
    fill(admin)
    before = counts(admin)
    wait.start()
    eventually(lambda: waiter(admin), PATIENCE_S)
    eventually(lambda: waiter(admin) is None, PATIENCE_S)
    lines, errors, status = wait.end()
    assert lines == [] and status != 0 and errors != ""
    after = counts(admin)
    assert after["rl_waits"] == before["rl_waits"] + 1
    assert after["rl_waits_abandoned"] == before["rl_waits_abandoned"] + 1
    assert after["rl_waiting_clients"] == 0


def test_by_default_redis_rb_calls_again(server, make):
    admin, _ = server
    wait = make("redis-rb", "wait", [TIMEOUTS["redis-rb"], (", reconnect_attempts: 0", "")])
    fill(admin)
    wait.start()
    eventually(lambda: waiter(admin), PATIENCE_S)
    first = waiter(admin)["id"]
    eventually(lambda: (waiter(admin) or {"id": first})["id"] != first, PATIENCE_S)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_wait_that_ends_in_a_denial(server, make, client):
    admin, _ = server
    # The next unit is free after 60 seconds at least, so the call is denied at once.
    admin.execute_command("RL.GCRA", "partner-api", 5, 60, "FORCE", 20)
    assert re.fullmatch(r"denied, wait_ms \d{6}", *run(make(client, "wait")))


PAGES = ["page 1", "page 2", "page 3"]
# The text in the programs after which a lease is renewed, and text with which it is renewed after each page: also if the clock
# shows the same time after a step, or an earlier one.
RENEWS = {
    "redigo": ("> 10*time.Second", "> -10*time.Second"),
    "ioredis": ("<= 10_000", "< -10_000"),
    "node-redis": ("> 10_000", "> -10_000"),
    "phpredis": ("> 10 ?", "> -10 ?"),
    "Predis": ("> 10 ?", "> -10 ?"),
    "redis-py": ("> 10:", "> -10:"),
    "redis-rb": ("<= 10", "< -10"),
}
# The step of the work, and one that waits until the test lets it go on.
STEPS = {
    "go": ('fmt.Println("page", page)', 'fmt.Println("page", page); fmt.Scanln()'),
    "js": ("console.log(`page ${page}`);", "console.log(`page ${page}`); readFileSync(0);"),
    "php": ('echo "page $page\\n";', 'echo "page $page\\n"; fgets(STDIN);'),
    "python": ('print(f"page {page}")', 'print(f"page {page}", flush=True); open(0).read()'),
    "ruby": ('puts "page #{page}"', 'puts "page #{page}"; $stdout.flush; gets'),
}


def granted_leases(admin):
    return counts(admin)["rl_lease_granted"]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_lease_is_taken_renewed_and_released(server, make, client):
    admin, _ = server
    before = counts(admin)
    assert run(make(client, "lease")) == PAGES
    assert granted_leases(admin) == before["rl_lease_granted"] + 1
    assert run(make(client, "lease", [RENEWS[client]])) == PAGES
    assert granted_leases(admin) == before["rl_lease_granted"] + 1 + 1 + len(PAGES)
    after = counts(admin)
    assert after["rl_released"] == before["rl_released"] + 2
    assert after["rl_lease_denied"] == before["rl_lease_denied"]
    assert not admin.exists("converters")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_lease_is_waited_for_in_line(server, make, client):
    admin, _ = server
    admin.execute_command("RL.LEASE", "converters", 4, 3600, "ID", "another", "COST", 4)
    program = make(client, "lease").start()
    eventually(lambda: counts(admin)["rl_waiting_clients"] == 1, PATIENCE_S)
    admin.execute_command("RL.RELEASE", "converters", "another")
    lines, errors, status = program.end()
    assert (lines, errors, status) == (PAGES, "", 0)
    # More than the limit is never granted, so the call does not wait.
    four, none = ("'4', '30'", "'0', '30'") if client == "node-redis" else ("4, 30", "0, 30")
    lines, errors, status = make(client, "lease", [(four, none)]).start().end()
    assert lines == [] and status != 0 and "no lease" in errors


@pytest.mark.parametrize("client", CLIENTS)
def test_the_work_ends_when_the_lease_is_lost(server, make, client):
    admin, _ = server
    language, *_ = CLIENTS[client]
    change = [RENEWS[client], STEPS[language]]
    if language == "js":
        change.append(("import { randomUUID }", "import { readFileSync } from 'node:fs';\nimport { randomUUID }"))
    program = make(client, "lease", change).start()
    eventually(lambda: admin.exists("converters"), PATIENCE_S)
    admin.delete("converters")
    lines, errors, status = program.end()
    assert lines == PAGES[:1] and status != 0 and "no lease" in errors
    assert not admin.exists("converters"), "a lost lease is not taken again"


def test_a_call_over_a_plain_connection(server):
    admin, port = server
    admin.flushall()
    [text] = [text for language, text, is_run in blocks() if language == "bash" and is_run]
    assert "6379" in text
    command = ["bash", "-eu", "-c", text.replace("6379", str(port))]
    output = subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S).stdout
    assert output == b"*5\r\n:1\r\n:10\r\n:9\r\n:0\r\n:6000\r\n"
    assert inspect(admin, "user:42")["used"] == 1
