"""The blocks of docs/monitoring.md that are not run by the tests of the module."""

import os
import re
import subprocess

from running import DOCUMENT, FILES, ROOT, environment_of_exporter, server

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
    commands = [text for before, language, text in BLOCKS if language == "bash" and not before.startswith("Not run in tests:")]
    [copies] = commands
    for folder in ("etc/prometheus", "etc/default"):
        (tmp_path / folder).mkdir(parents=True)
    assert copies.count(" /etc/") == 2
    there = copies.replace(" /etc/", ' "$there"/etc/')
    subprocess.run(["bash", "-euc", there], cwd=ROOT, env=os.environ | {"there": str(tmp_path)}, check=True)
    script = environment_of_exporter()["REDIS_EXPORTER_SCRIPT"]
    assert (tmp_path / script.lstrip("/")).read_text() == (FILES / "redis-rl.lua").read_text()
    # Prometheus reads the rules from the folder of its configuration. That file itself belongs to the operator.
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
