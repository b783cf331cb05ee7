"""On each server, the exporter shows the values of the server, and the exporter's user can do nothing else. Each server replies
as docs/monitoring.md describes. This file also runs those blocks of that page that the tests of the module do not run."""

import contextlib
import os
import re
import subprocess

import pytest
import redis

from running import (
    DOCUMENT,
    FILES,
    ROOT,
    SERVERS,
    environment_of_exporter,
    eventually,
    exporter,
    free_ports,
    scraped,
    script_values,
    server,
)


@pytest.fixture(params=SERVERS)
def program(request):
    return request.param


@pytest.fixture
def running(program, tmp_path):
    with server(tmp_path, program=program) as running:
        # The counts of RL.TOP decay so slowly that none changes between two readings.
        running.call("CONFIG", "SET", "rl.top-half-life", "86400")
        yield running


@contextlib.contextmanager
def waiting(server, count, *call):
    """Clients that wait with this call. Yields their ids. They disconnect at the end of the block."""
    with contextlib.ExitStack() as stack:
        ids = []
        for _ in range(count):
            connection = redis.Connection(port=server.port)
            stack.callback(connection.disconnect)
            connection.send_command("CLIENT", "ID")
            ids.append(connection.read_response())
            connection.send_command(*call)
        blocked = lambda: {int(client["id"]) for client in server.client.client_list() if "b" in client["flags"]}
        eventually(lambda: blocked() >= set(ids), what="the clients to wait")
        yield ids


# Names that need escapes: quotes and backslashes, bytes that are no text, line breaks, and a name that is longer than RL.TOP
# keeps.
NAMES = [b'a"b\\c', b"caf\xc3\xa9", b"\xff\x00\xfe", b"two\nlines\r\n", b"%0 {} = , #", b"long" * 200, b"", b"rl_top:1:x"]


def decoded(name):
    """The bytes of a name as redis-cli reads it between double quotes."""
    parts = re.findall(r'\\x([0-9a-f]{2})|\\(["\\])|([ !#-\[\]-~])', name)
    assert "".join(f"\\x{byte}" if byte else f"\\{mark}" if mark else plain for byte, mark, plain in parts) == name
    return b"".join(bytes([int(byte, 16)]) if byte else (mark or plain).encode() for byte, mark, plain in parts)


def test_all_values_are_those_of_the_server(running, tmp_path):
    call = running.call
    for _ in range(5):
        call("RL.FIXED", "fixed", 3, 60)
    call("RL.SLIDE", "slide", 10, 60, "COST", 5, "ID", "a")
    call("RL.SLIDE", "slide", 10, 60, "COST", 5, "ID", "a")
    call("RL.SETTLE", "slide", "a", 2)
    for _ in range(8):
        call("RL.GCRA", "gcra", 1, 3600)
    call("RL.BUCKET", "bucket", 5, 60)
    call("RL.POLICY", "policy", "BUCKET", 1, 60, "SHADOW")
    for _ in range(2):
        call("RL.USE", "tried", 1, "policy")
    for worker in ("w1", "w2"):
        call("RL.LEASE", "lease", 1, 60, "ID", worker)
    call("RL.RELEASE", "lease", "w1")
    call("RL.PAUSE", "partner", 60)
    for count, name in enumerate(NAMES, 5):
        for _ in range(count):
            call("RL.GCRA", name, 0, 1)
    # Four denials: the script shows only keys with five or more.
    for _ in range(4):
        call("RL.GCRA", "few", 0, 1)

    with exporter(tmp_path) as port, waiting(running, 3, "RL.GCRA", "gcra", 1, 3600, "BLOCK", 20_000) as waiters:
        call("CLIENT", "UNBLOCK", waiters[0])
        call("CLIENT", "KILL", "ID", waiters[1])
        eventually(lambda: int(running.info_rl()["rl_waits_abandoned"]) == 1, what="the client to be forgotten")
        denied = 7 + sum(range(5, 5 + len(NAMES))) + 4 + 1
        known = {
            "fixed_calls": 5, "fixed_granted": 3, "fixed_denied": 2,
            "slide_calls": 2, "slide_granted": 1, "slide_denied": 0,
            "gcra_calls": 1 + denied, "gcra_granted": 1, "gcra_denied": denied,
            "bucket_calls": 3, "bucket_granted": 2, "bucket_denied": 1,
            "lease_calls": 2, "lease_granted": 1, "lease_denied": 1,
            "fixed_shadowed": 0, "slide_shadowed": 0, "gcra_shadowed": 0, "bucket_shadowed": 1, "lease_shadowed": 0,
            "settled": 1, "released": 1, "retried": 1, "pauses": 1,
            "waiting_clients": 1, "waits": 3, "wait_timeouts": 1, "waits_abandoned": 1,
            "shortcuts": 1,
        }  # fmt: skip
        values = script_values(port, running)
        info = running.info_rl()
        assert {name: int(value) for name, value in info.items() if name != "rl_version"} == {
            f"rl_{name}": value for name, value in known.items()
        }
        top = {key: value for key, value in values.items() if key.startswith("rl_top_denials:")}
        counters = {key: value for key, value in values.items() if key not in top}
        others = {"rl_loaded": 1, f"rl_version:{info['rl_version']}": 1}
        assert counters == others | {f"rl_{key}": value for key, value in known.items()}

        rows = running.raw("RL.TOP", 10)
        rows = [dict(zip(row[::2], row[1::2])) if isinstance(row, list) else row for row in rows]
        listed = {(row[b"db"], row[b"key"]): row[b"denials"] for row in rows if row[b"denials"] >= 5}
        shown = [re.fullmatch(r"rl_top_denials:(\d+):(.*)", key) for key in top]
        assert {(int(key[1]), decoded(key[2])): top[key[0]] for key in shown} == listed
        # All NAMES, cut to the 512 bytes that RL.TOP keeps, and `gcra`, which was denied 7 times, and once more by CLIENT
        # UNBLOCK.
        assert listed == {(0, name[:512]): count for count, name in enumerate(NAMES, 5)} | {(0, b"gcra"): 8}

        for _ in range(5):
            for number in range(20):
                call("RL.GCRA", f"more:{number}", 0, 1)
        assert len([key for key in script_values(port, running) if key.startswith("rl_top_denials:")]) == 10


def test_the_user_of_the_exporter_can_do_no_more_than_it_needs(running, tmp_path):
    with exporter(tmp_path) as port:
        for _ in range(3):
            metrics = {(name, *labels.values()): value for name, labels, value in scraped(port, running)}
            assert metrics["redis_up",] == 1
    assert not [command for command in metrics if "NOPERM" in command]
    assert running.call("ACL", "LOG") == []
    assert "errorstat_NOPERM" not in running.client.info("errorstats")
    for call in ("GET x", "SET x y", "RL.GCRA x 1 1", "RL.INSPECT x", "CONFIG GET *", "KEYS *", "FLUSHALL", "CLIENT LIST"):
        assert "no permissions to run" in running.call("ACL", "DRYRUN", "exporter", *call.split()), call
    with redis.Redis(port=running.port, username="exporter", password="a-long-secret") as client:
        with pytest.raises(redis.ResponseError, match="can't run|permission"):
            client.eval("return redis.call('RL.GCRA', 'x', '1', '1')", 0)


@pytest.mark.parametrize("state", ["replica", "stale", "full", "cluster"])
def test_the_script_runs_in_each_state_of_the_server(program, tmp_path, state):
    options = ["--cluster-enabled", "yes", "--cluster-port", *free_ports(1)] if state == "cluster" else []
    with server(tmp_path, *options, program=program) as running, exporter(tmp_path) as port:
        for _ in range(5):
            running.try_call("RL.GCRA", "key", 0, 1)
        if state == "full":
            running.call("CONFIG", "SET", "maxmemory", "1")
        elif state != "cluster":
            running.call("CONFIG", "SET", "replica-serve-stale-data", "no" if state == "stale" else "yes")
            running.call("REPLICAOF", "127.0.0.1", "1")
        values = script_values(port, running)
        assert values["rl_loaded"] == 1
        if state != "cluster":
            assert values["rl_gcra_denied"] == values["rl_top_denials:0:key"] == 5


# The configuration of a server that has not loaded the module, and so does not know the command RL.TOP.
WITHOUT_MODULE = [("loadmodule ./rl.so\n", ""), (" +rl.top", "")]


def test_the_script_says_that_the_module_is_missing(program, tmp_path):
    with server(tmp_path, program=program, replaced=WITHOUT_MODULE) as running, exporter(tmp_path) as port:
        assert script_values(port, running) == {"rl_loaded": 0}


def test_the_sections_of_info(running):
    shown = running.info
    sections = ("default", "all", "everything", "modules", "rl", "commandstats")
    has_fields = {section for section in sections if "rl_version:" in shown(section)}
    assert has_fields == {"everything", "modules", "rl"}
    assert "rl_version:" not in shown()
    is_listed = {section for section in sections if "module:name=rl," in shown(section)}
    assert is_listed == {"default", "all", "everything", "modules"}
    assert "module:name=rl," in shown() and "cmdstat_" not in shown()
    running.call("RL.GCRA", "key", 10, 60)
    has_calls = {section for section in sections if "cmdstat_rl.gcra:" in shown(section)}
    assert has_calls == {"all", "everything", "commandstats"}


def test_waiting_clients_are_found(running, tmp_path):
    """The line of the document prints the clients that wait for a limiter, and no others."""
    [line] = [line for line in DOCUMENT.split("\n") if line.startswith("redis-cli CLIENT LIST |")]
    line = line.split("#")[0]
    (tmp_path / "redis-cli").write_text(f'#!/bin/sh\nPATH=\'{os.environ["PATH"]}\'\nexec redis-cli -p {running.port} "$@"\n')
    (tmp_path / "redis-cli").chmod(0o755)
    found = lambda: subprocess.run(
        ["bash", "-euc", line], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    for key in ("key", "second"):
        running.call("RL.GCRA", key, 1, 3600)
    both = ["RL.ALL", 2, "key", "second", "GCRA", 1, 3600, "GCRA", 1, 3600, "BLOCK", 20_000]
    with waiting(running, 1, "BLPOP", "list", 0):
        assert found() == []
        with waiting(running, 2, "RL.GCRA", "key", 1, 3600, "BLOCK", 20_000), waiting(running, 1, *both):
            clients = found()
            assert sorted(re.search(r" cmd=(\S+)", client)[1] for client in clients) == ["rl.all", "rl.gcra", "rl.gcra"]
            facts = running.call("RL.INSPECT", "key")
            facts = facts if isinstance(facts, dict) else dict(zip(facts[::2], facts[1::2]))
            assert facts["waiting"] == 3


# Each block: the paragraph before it, its language, its text.
BLOCKS = re.findall(r"((?:[^\n`][^\n]*\n)*)\n?```(\w+)\n(.*?)```\n", DOCUMENT, re.DOTALL)


def test_each_block_is_tested_or_says_why_not():
    # Blocks `conf` and `sh` are run by tests/server/readme.rs, `promql` by test_prometheus.py.
    assert {language for _, language, _ in BLOCKS} == {"conf", "sh", "yaml", "bash", "promql"}
    assert len(BLOCKS) * 2 == DOCUMENT.count("```")
    for _, language, text in BLOCKS:
        if language == "yaml":
            assert text in (FILES / "prometheus.yml").read_text()


def test_the_files_are_copied_to_where_the_settings_expect_them(tmp_path):
    commands = [text for before, language, text in BLOCKS if language == "bash" and "Not run in tests:" not in before]
    [copies] = commands
    for folder in ("etc/prometheus", "etc/default"):
        (tmp_path / folder).mkdir(parents=True)
    assert copies.count(" /etc/") == 2
    there = copies.replace(" /etc/", ' "$there"/etc/')
    subprocess.run(["bash", "-euc", there], cwd=ROOT, env=os.environ | {"there": str(tmp_path)}, check=True)
    script = environment_of_exporter()["REDIS_EXPORTER_SCRIPT"]
    assert (tmp_path / script.lstrip("/")).read_text() == (FILES / "redis-rl.lua").read_text()
    # Prometheus reads the rules from the folder of its configuration. The operator writes that configuration,
    # prometheus.yml.
    name = "redis-rl-rules.yml"
    assert (tmp_path / "etc/prometheus" / name).read_text() == (FILES / name).read_text()
    assert not (tmp_path / "etc/prometheus/prometheus.yml").exists()
    assert (tmp_path / "etc/default/prometheus-redis-exporter").stat().st_mode & 0o777 == 0o640


def test_the_lines_for_other_systems_print_all_counters(tmp_path):
    [lines] = [text for _, language, text in BLOCKS if language == "sh" and "awk" in text]
    with server(tmp_path) as running:
        running.call("RL.GCRA", "key", 10, 60)
        path = os.environ["PATH"]
        (tmp_path / "redis-cli").write_text(f"#!/bin/sh\nPATH='{path}'\nexec redis-cli -p {running.port} \"$@\"\n")
        (tmp_path / "redis-cli").chmod(0o755)
        printed = subprocess.check_output(["bash", "-euc", lines], env={"PATH": f"{tmp_path}:{path}"}, text=True)
        *plain, influx = printed.splitlines()
        info = running.info_rl()
        del info["rl_version"]
        assert dict(line.split(" ") for line in plain) == info
        measurement, fields = influx.split(" ")
        assert measurement == "redis_rl"
        assert dict(field.split("=") for field in fields.split(",")) == {name: f"{value}i" for name, value in info.items()}
        assert info["rl_gcra_granted"] == "1"
