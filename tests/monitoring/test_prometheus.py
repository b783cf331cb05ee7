"""The rules, the alerts and the dashboard: on given values, and on real servers, a real exporter and a real Prometheus."""

import contextlib
import itertools
import json
import math
import re
import subprocess
import threading

import redis

from running import DOCUMENT, FILES, PROMETHEUS, PROMTOOL, ROOT
from running import answers_http, eventually, exporter, free_ports, http, process, server, started

RULES = (FILES / "redis-rl-rules.yml").read_text()
CASES = (ROOT / "tests/monitoring/rules.yml").read_text()
DASHBOARD = json.loads((FILES / "redis-rl-dashboard.json").read_text())
ALERTS = re.findall(r"- alert: (\w+)", RULES)
RECORDS = re.findall(r"- record: (\S+)", RULES)


def promtool(*arguments):
    done = subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_the_files():
    assert "rule_files:\n  - redis-rl-rules.yml\n" in (FILES / "prometheus.yml").read_text()
    promtool("check", "config", FILES / "prometheus.yml")
    promtool("check", "rules", FILES / "redis-rl-rules.yml")


def test_the_rules_on_given_values():
    promtool("test", "rules", ROOT / "tests/monitoring/rules.yml")
    # Each alert has a case in which it fires, and one in which it does not.
    cases = re.findall(r"alertname: (\w+)\n(\s+exp_alerts: \[\])?", CASES)
    assert {name for name, silent in cases if silent} == {name for name, silent in cases if not silent} == set(ALERTS)
    assert set(re.findall(r"- expr: (\S+?)(?:\{|\n)", CASES)) == set(RECORDS)


def test_each_alert_says_what_to_do():
    for alert in re.split(r"\n\s+- alert: ", RULES)[1:]:
        for field in ("summary", "description", "severity"):
            assert re.search(rf"\n\s+{field}: \S", alert), alert
        [anchor] = re.findall(r"runbook: docs/monitoring\.md#(\S+)", alert)
        titles = [line.strip("# ").lower().replace(" ", "-") for line in DOCUMENT.split("\n") if line.startswith("#")]
        assert anchor in titles
        assert f"`{alert.split()[0]}`" in DOCUMENT


def test_the_dashboard_can_be_imported():
    assert DASHBOARD["id"] is None and DASHBOARD["uid"] and DASHBOARD["title"] and DASHBOARD["schemaVersion"] >= 36
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    assert variables["instance"]["includeAll"] and variables["instance"]["multi"] and variables["instance"]["allValue"] == ".*"
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    for place in places:
        assert place["x"] >= 0 and place["y"] >= 0 and place["w"] > 0 and place["h"] > 0 and place["x"] + place["w"] <= 24
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
    for panel in panels:
        assert panel["title"] and panel["description"] and panel["targets"]
        assert panel["type"] in ("stat", "timeseries", "table")
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for target in panel["targets"]:
            # Also with all servers chosen, the dashboard shows those of its job only.
            assert target["expr"].count('{job="redis-rl"') == target["expr"].count("{") > 0
            assert set(re.findall(r"\$([a-zA-Z_]+)", target["expr"])) <= {"instance", "__rate_interval"}
    assert '{job="redis-rl"' in variables["instance"]["query"]["query"]
    assert variables["instance"]["definition"] == variables["instance"]["query"]["query"]
    used = {name for name in variables if f"${name}" in json.dumps(panels) or f"${{{name}}}" in json.dumps(panels)}
    assert used == variables.keys()


def test_the_dashboard_counts_the_first_error_of_a_kind(tmp_path):
    """The server shows a kind of error only once it has occurred, so its first value is already an error."""
    title = lambda panel: panel["title"]
    [recent] = [panel["targets"][0]["expr"] for panel in DASHBOARD["panels"] if title(panel) == "Errors in 5 minutes"]
    [by_kind] = [panel["targets"][0]["expr"] for panel in DASHBOARD["panels"] if title(panel) == "Errors per second"]
    others = {"job": "redis-rl", "instance": "b"}
    errors = lambda kind, values, **labels: {
        "series": "redis_errors_total" + selector({"job": "redis-rl", "instance": "a", "err": kind} | labels), "values": values
    }  # fmt: skip
    selector = lambda labels: "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
    up = lambda labels, values: {"series": "redis_up" + selector(labels), "values": values}
    series = [
        up({"job": "redis-rl", "instance": "a"}, "1x40"),
        # The first three errors come after ten minutes. This kind does not occur again.
        errors("OOM", "_x10 3x30"),
        # An old kind grows by one a minute; it is not one that the first panel counts.
        errors("ERR", "5+1x40"),
        # The server b is new after ten minutes: nobody knows when its errors came. Another job has the same server.
        up(others, "_x10 1x30"),
        errors("OOM", "_x10 7x30", instance="b"),
        errors("OOM", "_x10 9x30", job="other"),
    ]
    shown = lambda labels, value: {"labels": selector(labels) if labels else "", "value": value}
    chosen = lambda expression: expression.replace("$instance", ".*")
    expected = [
        (recent, "9m", [shown({}, 0)]),
        (recent, "10m", [shown({}, 3)]),
        (recent, "14m", [shown({}, 3)]),
        (recent, "16m", [shown({}, 0)]),
        (by_kind, "9m", [shown({"err": "ERR"}, 5 / 300)]),
        (by_kind, "12m", [shown({"err": "ERR"}, 5 / 300), shown({"err": "OOM"}, 3 / 300)]),
        (by_kind, "16m", [shown({"err": "ERR"}, 5 / 300), shown({"err": "OOM"}, 0)]),
    ]
    cases = [{"expr": chosen(expression), "eval_time": at, "exp_samples": samples} for expression, at, samples in expected]
    tests = {"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": cases}]}
    (tmp_path / "cases.yml").write_text(json.dumps(tests))
    promtool("test", "rules", tmp_path / "cases.yml")


class Load:
    """Calls that go on until the end of the block, in a thread of its own. If one fails, the test fails."""

    def __init__(self, call):
        self.ended = threading.Event()
        self.failure = None

        def run():
            try:
                while not self.ended.wait(0.05):
                    call()
            except Exception as failure:
                self.failure = failure

        self.thread = threading.Thread(target=run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        assert self.failure is None, self.failure


@contextlib.contextmanager
def prometheus(folder, targets, exporter_port):
    """Prometheus with the files, in which only times and addresses are replaced. Alerts do not wait until they fire."""
    [port] = free_ports(1)
    folder = folder / "prometheus"
    folder.mkdir()
    text = (FILES / "prometheus.yml").read_text()
    for old, new in [
        ("          - 127.0.0.1:6379\n", "".join(f"          - {target}\n" for target in targets)),
        ("127.0.0.1:9121", f"127.0.0.1:{exporter_port}"),
        ("scrape_interval: 15s", "scrape_interval: 1s"),
        ("evaluation_interval: 15s", "evaluation_interval: 1s"),
    ]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "prometheus.yml").write_text(text)
    (folder / "redis-rl-rules.yml").write_text(re.sub(r"\n        for: \w+", "", RULES))
    options = ["--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.path=data"]
    with process([PROMETHEUS, *options], folder) as child:
        started(child, folder, lambda: answers_http(port, "/-/ready"))
        yield port


def query(port, expression):
    answer = json.loads(http(port, "/api/v1/query", query=expression))
    # The exporter gives all results of a script one name, so newer versions of Prometheus can't know which are counters.
    warnings = [warning for warning in answer.get("warnings", []) if "metric might not be a counter" not in warning]
    assert answer["status"] == "success" and not warnings, answer
    return answer["data"]["result"]


def test_alerts_and_dashboard_on_real_servers(tmp_path):
    with contextlib.ExitStack() as stack:
        run = lambda *options, **more: stack.enter_context(server(tmp_path, *options, **more))
        calm, busy, replica, full, dead = run(), run(), run(), run(), run()
        evicts = run("--maxmemory-policy", "allkeys-random")
        without_module = run(replaced=[("loadmodule ./rl.so\n", ""), (" +rl.top", "")])
        without_eval = run(replaced=[(" +eval", "")])
        dead.child.kill()
        dead.child.wait()
        replica.call("REPLICAOF", "127.0.0.1", *free_ports(1))
        full.call("CONFIG", "SET", "maxmemory", "1")
        evicts.call("CONFIG", "SET", "maxmemory", evicts.client.info("memory")["used_memory"] + 200_000)
        for _ in range(10):
            calm.call("RL.GCRA", "calm", 10, 3600)
        busy.call("LPUSH", "list", "x")
        busy.call("RL.GCRA", "busy", 1, 100)
        numbers = itertools.count()
        connections = []
        stack.callback(lambda: [connection.disconnect() for connection in connections])

        def wait():
            connection = redis.Connection(port=busy.port)
            connections.append(connection)
            connection.send_command("RL.GCRA", "busy", 1, 100, "BLOCK", "1d")

        busy.call("RL.POLICY", "policy", "BUCKET", 1, 60, "SHADOW")

        def make_trouble():
            number = next(numbers)
            for key in (f"user:{number % 15}", "user:hot"):
                busy.call("RL.GCRA", key, 1, 3600)
            busy.call("RL.SLIDE", "slide", 100_000, 60, "COST", 3, "ID", number)
            busy.call("RL.SLIDE", "slide", 100_000, 60, "COST", 3, "ID", number)
            busy.call("RL.SETTLE", "slide", number, 2)
            busy.call("RL.SLIDE", "slide", 100_000, 60, "ID", f"{number}r")
            busy.call("RL.RELEASE", "slide", f"{number}r")
            busy.call("RL.LEASE", "lease", 1, 60, "ID", number)
            busy.call("CL.THROTTLE", "cell", 1, 1, 60)
            busy.call("RL.FIXED", "fixed", 10, 1)
            busy.call("RL.PAUSE", f"partner:{number}", "1m")
            busy.call("RL.BUCKET", "bucket", 10, 1)
            busy.call("RL.USE", "tried", 1, "policy")
            busy.try_call("RL.GCRA", "list", 1, 1)
            replica.try_call("RL.GCRA", "key", 1, 1)
            full.try_call("RL.GCRA", "key", 1, 1)
            for _ in range(20):
                evicts.try_call("RL.GCRA", next(numbers), 1, 3600)
            # The line grows. One of its clients is denied, another one disconnects.
            if int(busy.info_rl()["rl_waiting_clients"]) < 400:
                for _ in range(4):
                    wait()
            waiting = [client["id"] for client in busy.client.client_list() if "b" in client["flags"]]
            for waiter in waiting[:1]:
                busy.try_call("CLIENT", "UNBLOCK", waiter)
            for waiter in waiting[1:2]:
                busy.try_call("CLIENT", "KILL", "ID", waiter)

        exporter_port = stack.enter_context(exporter(tmp_path))
        servers = [calm, busy, replica, full, dead, evicts, without_module, without_eval]
        stack.enter_context(Load(make_trouble))
        port = stack.enter_context(prometheus(tmp_path, [server.address for server in servers], exporter_port))

        expected = {
            ("RedisRlDown", dead), ("RedisRlScriptFails", without_eval), ("RedisRlModuleMissing", without_module),
            ("RedisRlDeniedShareHigh", busy), ("RedisRlWaitersGrow", busy), ("RedisRlWaitsTimeOut", busy),
            ("RedisRlKeysArePaused", busy),
            ("RedisRlOutOfMemory", full), ("RedisRlMemoryNearlyFull", full), ("RedisRlCallsGetErrors", busy),
            ("RedisRlCallsGetErrors", replica), ("RedisRlKeysEvicted", evicts), ("RedisRlReplicaBehind", replica),
        }  # fmt: skip
        # The comparison with an hour ago is tested on given values only.
        assert {name for name, _ in expected} == set(ALERTS) - {"RedisRlDeniedShareJumps"}
        expected = {(name, server.address) for name, server in expected}
        firing = set()

        def look():
            alerts = json.loads(http(port, "/api/v1/alerts"))["data"]["alerts"]
            firing.update((alert["labels"]["alertname"], alert["labels"]["instance"]) for alert in alerts)
            return firing >= expected

        eventually(look, what=f"all of {sorted(expected)}")
        assert not [alert for alert in firing if alert[1] == calm.address]

        rules = [rule for group in json.loads(http(port, "/api/v1/rules"))["data"]["groups"] for rule in group["rules"]]
        assert {rule["name"] for rule in rules} == {*ALERTS, *RECORDS}
        assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []
        for record in RECORDS:
            assert query(port, record), record

        # What Prometheus has stored of a server that is at rest.
        samples = query(port, f'redis_script_values{{instance="{calm.address}",key=~"rl_[a-z_]+"}}')
        stored = {sample["metric"]["key"]: int(sample["value"][1]) for sample in samples}
        assert stored == {"rl_loaded": 1} | {name: int(value) for name, value in calm.info_rl().items() if name != "rl_version"}
        assert stored["rl_gcra_granted"] == 10

        [variable] = [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
        selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
        instances = {sample["metric"][label] for sample in query(port, selector)}
        assert instances == {server.address for server in servers if server not in (dead, without_eval)}
        [shown_query] = re.findall(r"```promql\n(.*?)\n```", DOCUMENT, re.DOTALL)
        assert len({sample["metric"]["key"] for sample in query(port, shown_query)}) == 10

        # A panel shows something, and not only zeros.
        shown = lambda samples: samples if any(float(sample["value"][1]) > 0 for sample in samples) else None
        for panel in DASHBOARD["panels"]:
            for target in panel["targets"]:
                for chosen in (".*", "|".join(map(re.escape, instances))):
                    chosen = chosen.replace("\\", "\\\\")
                    expression = target["expr"].replace("$instance", chosen).replace("$__rate_interval", "1m")
                    samples = eventually(lambda: shown(query(port, expression)), what=f"{panel['title']}: {expression}")
                    assert all(math.isfinite(float(sample["value"][1])) for sample in samples), (panel["title"], samples)
                    named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                    assert all(named <= sample["metric"].keys() for sample in samples), (panel["title"], samples)
        # The names of keys are shown without the rest of the label.
        [table] = [panel for panel in DASHBOARD["panels"] if panel["type"] == "table"]
        rows = query(port, table["targets"][0]["expr"].replace("$instance", ".*"))
        assert {"limiter": "user:hot", "db": "0", "instance": busy.address} in [row["metric"] for row in rows]
