"""Runs the tests that `limits` and flask-limiter have for their storage on Redis, with the storage of this package in its place:
on a server, a cluster and behind Sentinel, also with passwords and TLS. Fails if a test fails that MISSES does not list, or if a
listed one passes.

The tests are those of the source packages. Only what names the other storage or its servers is replaced: see CHANGES.
Usage: run.py FOLDER: a folder with the unpacked source packages, limits-* and flask_limiter-*."""

import collections
import concurrent.futures
import contextlib
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from servers import (  # noqa: E402
    SERVER,
    certificate,
    folder,
    free_ports,
    running,
    running_cluster,
    running_sentinel,
    tls_options,
)

LIMITS_MISSES = {
    r"test_sliding_window_counter_previous_window\[": "expects the estimate from two windows; this one counts exactly",
    r"test_custom_prefix\[": "reads the count of a key with GET, but the key is a limiter of the module",
}
FLASK_MISSES = {r"test_constructor_arguments_over_config": "expects the class of the storage in memory"}

# Tests of flask-limiter that need no storage: of its settings, of what it shows, and of a storage in memory that takes over.
FLASK_UNTOUCHED = (
    r"test_blueprint_static_exempt|test_commands\.(test_no_limiter|test_limits|test_clear_limits_no_extension)|test_invalid_|"
    r"test_constructor_arguments|test_uninitialized_limiter|test_decorated_limit_empty_exempt|test_fallback_to_memory_config|"
    r"test_disabled_flag"
)


def clocked(home):
    """A server whose clocks stand still at what a file says, and this file: see tests/support/clock.c."""
    library, clock, program = home / "clock.so", home / "clock", home / "server"
    source = HERE.parents[3] / "tests/support/clock.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    steady = time.monotonic_ns() // 1000
    clock.write_bytes(struct.pack("=qq", steady, time.time_ns() // 1000 - steady))
    program.write_text(f"#!/bin/sh\nCLOCK_FILE='{clock}' LD_PRELOAD='{library}' exec '{SERVER}' \"$@\"\n")
    program.chmod(0o755)
    return program, clock


def plain_server(stack, home, *options, with_clock=False):
    """Starts one server, and returns its port, its socket, and the file of its clock."""
    port = free_ports(1)[0]
    home.mkdir()
    program, clock = clocked(home) if with_clock else (SERVER, None)
    login = {"password": options[options.index("--requirepass") + 1]} if "--requirepass" in options else {}
    socket = f"{home}/s"
    stack.enter_context(
        running(
            home,
            *("--port", port, "--bind", "127.0.0.1", "--unixsocket", socket, *options),
            up={"port": port, **login},
            server=program,
        )
    )
    return port, socket, clock


def servers(stack, home, with_clock):
    """Starts all servers, and returns their ports by name."""
    home.mkdir()
    tls = certificate(home)
    more = [*tls_options(home), "--tls-cluster", "yes", "--tls-replication", "yes", "--tls-auth-clients", "no"]
    login = ["--requirepass", "sekret", "--masterauth", "sekret"]
    found = {}
    found["one"], found["socket"], found["clock"] = plain_server(stack, home / "one", with_clock=with_clock)
    found["cluster"] = stack.enter_context(running_cluster()).ports[0]
    found["auth"] = stack.enter_context(running_cluster(options=login, login={"password": "sekret"})).ports[0]
    found["tls"] = stack.enter_context(running_cluster(options=more, login=tls)).ports[0]
    found["sentinel"] = stack.enter_context(running_sentinel("mymaster")).sentinel_port
    found["sentinel-auth"] = stack.enter_context(running_sentinel("mymaster", "sekret")).sentinel_port
    return found


def changes(found):
    """Patterns, and what takes their places, in all tests."""
    rest = [
        (r'"(async\+)?redis://localhost:(7379|46379)', rf'"\1redis-rl://localhost:{found["one"]}'),
        (r'"(async\+)?redis\+unix:///tmp/limits\.redis\.sock', rf'"\1redis-rl+unix://{found["socket"]}'),
        (r'"(async\+)?redis\+cluster://localhost:8301"', rf'"\1rediss-rl+cluster://localhost:{found["tls"]}"'),
        (r'"(async\+)?redis\+cluster://localhost:7001', rf'"\1redis-rl+cluster://localhost:{found["cluster"]}'),
        (r'"(async\+)?redis\+cluster://(:sekret@)?localhost:8400', rf'"\1redis-rl+cluster://\2localhost:{found["auth"]}'),
        (r'"(async\+)?redis\+cluster://"', r'"\1redis-rl+cluster://"'),
        (r'ClusterNode\("localhost", 8400\)', f'ClusterNode("localhost", {found["auth"]})'),
        (r'"(async\+)?redis\+sentinel://localhost:26379', rf'"\1redis-rl+sentinel://localhost:{found["sentinel"]}'),
        (
            r'"(async\+)?redis\+sentinel://(:sekret@)?localhost:36379',
            rf'"\1redis-rl+sentinel://\2localhost:{found["sentinel-auth"]}',
        ),
        # On a busy machine a reply may take longer.
        (r"storage_from_string\(uri, \*\*args", "storage_from_string(uri, timeout=60, connect_timeout=60, **args"),
        # A second may end between the request and the check.
        (
            r'resp\.headers\["XX-Reset"\] == str\(math\.ceil\(time\.time\(\) \+ 1\)\)',
            'int(resp.headers["XX-Reset"]) in (math.ceil(time.time()), math.ceil(time.time() + 1))',
        ),
        # Options that only the other storage has.
        (r'"use_replicas": False,?', ""),
        (r'"implementation": ASYNC_REDIS_IMPLEMENTATION,?', ""),
        # The class of the storage, where a test expects it.
        (r"\bRedis(Cluster|Sentinel)?Storage,\n( +)lf\(", r"RedisRLStorage,\n\2lf("),
        (r"(?m)^from limits\.errors", "from redis_rl.limits_storage import RedisRLStorage\nfrom limits.errors"),
        # Where tests make calls fail: this storage does not call the client's method.
        (r'patch\("redis\.Redis\.execute_command"\)', 'patch("redis_rl._sync._connections._Node.ask")'),
    ]
    return [(re.compile(pattern), new) for pattern, new in rest]


def prepared(source, target, found):
    """Copies the tests of a package, with the changes."""
    shutil.copytree(source / "tests", target / "tests", ignore=shutil.ignore_patterns("conftest.py", "benchmarks"))
    shutil.copy(source / "pytest.ini", target)
    for path in target.glob("tests/**/*.py"):
        text = before = path.read_text()
        for pattern, new in changes(found):
            text = pattern.sub(new, text)
        if "/aio/" in str(path):
            text = text.replace("RedisRLStorage", "AsyncRedisRLStorage")
        if text != before:
            path.write_text(text)
    # Definitions that come later in a file take the place of earlier ones. The imports are those of other storages.
    theirs = re.sub(r"(?m)^import (pymemcache|pymongo|valkey)(\.\w+)?$", "", (source / "tests" / "conftest.py").read_text())
    ours = (HERE / f"{source.name.partition('-')[0]}_conftest.py").read_text()
    (target / "tests" / "conftest.py").write_text(theirs + "\n\n" + ours.replace("from __future__ import annotations\n", ""))


def judged(name, folder, environment, misses, expected, *arguments):
    """Runs the tests of a folder, and returns whether all is as expected."""
    report = folder / "report.xml"
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command += ["-o", "addopts=", "-o", "junit_family=xunit1", "-p", "no:flaky", "-W", "ignore::pytest.PytestUnknownMarkWarning"]
    # Many of these tests measure by a stopwatch, and a busy machine can delay them. So one that fails runs again, at most twice.
    command += ["--reruns=2", "-rfER", "--tb=short", "--no-header", *arguments]
    # Tables of commands keep their lines.
    environment = {**environment, "COLUMNS": "1000"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    # The last run of a test decides.
    runs = ElementTree.parse(report).iter("testcase") if report.exists() else []
    cases = {f"{case.get('classname')}.{case.get('name')}": case for case in runs}
    results = collections.Counter()
    wrong, untouched = [], []
    for test, case in cases.items():
        reason = next((text for pattern, text in misses.items() if re.search(pattern, test)), None)
        state = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")
        if state == "skipped" and case.find(state).get("type") == "pytest.xfail":
            # The package itself expects this failure.
            state = "passed"
        results[state] += 1
        for fact in case.iter("property"):
            if fact.get("name") == "touches the storage" and fact.get("value") != "True":
                untouched.append(test)
        if state == "skipped" or (state == "passed") == (reason is not None):
            wrong.append(f"{test}: {state}" + (f", but it is listed as a miss: {reason}" if reason else ""))
    missed = results["failure"] + results["error"]
    print(f"{name}: {results['passed']} of {len(cases)} tests passed; {missed - len(wrong)} known misses")
    for line in sorted(set(re.findall(r"(?m)^RERUN .*", done.stdout))):
        if not any(re.search(pattern, line) for pattern in misses):
            print(f"  {line}")
    if expected is not None:
        print(f"  {len(cases) - len(untouched)} of them touch the storage")
        # A test that does not touch it, although it did, would prove nothing.
        wrong += [f"{test}: does not touch the storage" for test in untouched if not re.search(expected, test)]
    for reason in sorted(set(misses.values())):
        print(f"  known: {reason}")
    if wrong or done.returncode not in (0, 1) or not cases:
        print(done.stdout, done.stderr, *wrong, sep="\n")
        return False
    return True


def main(sources):
    [limits] = sources.glob("limits-*/")
    [flask] = sources.glob("flask_limiter-*/")
    marks = ["-m", "redis or redis_cluster or redis_sentinel", "-o", "asyncio_default_fixture_loop_scope=function"]
    jobs = [
        (f"{limits.name}, threads", limits, LIMITS_MISSES, [*marks, "tests", "--ignore=tests/aio"]),
        (f"{limits.name}, asyncio", limits, LIMITS_MISSES, [*marks, "tests/aio"]),
        (flask.name, flask, FLASK_MISSES, ["tests"]),
    ]
    path = os.pathsep.join([str(HERE.parents[1] / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])

    # The tests mostly wait. So they run at the same time, each with servers of its own, because they empty them.
    def run(number, name, source, misses, arguments):
        with contextlib.ExitStack() as stack:
            mine = home / str(number)
            mine.mkdir()
            found = servers(stack, mine / "servers", source == flask)
            prepared(source, mine, found)
            ports = {f"PEER_{server}": str(value) for server, value in found.items()}
            untouched = FLASK_UNTOUCHED if source == flask else None
            return judged(name, mine, {**os.environ, "PYTHONPATH": path, **ports}, misses, untouched, *arguments)

    with folder() as home, concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        fine = list(pool.map(lambda each: run(each[0], *each[1]), enumerate(jobs)))
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
