"""Reads the files that scripts/packages.sh tests, so that the script runs what these say and not a copy of it.

Usage:
  packages.py block DOCUMENT HEADING N      the Nth `bash` block below a heading
  packages.py blocks DOCUMENT               for each block in another language than the tests of README.md run: HEADING, N
  packages.py docker                        the steps of the Dockerfile, as calls of shell functions
  packages.py compose                       checks compose.yaml, and prints shell variables: its command and its health check
  packages.py kubernetes                    checks packaging/kubernetes.yaml, and prints shell variables
"""

import json
import re
import shlex
import sys
from pathlib import Path


def fail(message):
    sys.exit(message)


def blocks_of(document):
    """Yields for each code block: the heading above it, its language, its text, and whether the paragraph before it begins with
    "Not run in tests:"."""
    heading, language, lines, paragraph, empty = "", None, [], "", True
    for line in Path(document).read_text().splitlines():
        if language is not None:
            if line == "```":
                yield heading, language, "\n".join(lines) + "\n", paragraph.startswith("Not run in tests:")
                language = None
            else:
                lines.append(line)
        elif line.startswith("```"):
            language, lines = line[3:], []
        elif line.startswith("#"):
            heading, paragraph, empty = line.lstrip("#").strip(), "", True
        elif line:
            paragraph, empty = (line if empty else paragraph), False
        else:
            empty = True


def block(document, heading, number):
    found = [text for at, language, text, _ in blocks_of(document) if (at, language) == (heading, "bash")]
    if len(found) < int(number):
        fail(f"{document} has no bash block {number} below {heading!r}")
    print(found[int(number) - 1], end="")


def blocks(document):
    """The blocks that packages.sh has to run. A yaml block must stand in a file that is tested."""
    numbers = {}
    for heading, language, text, excused in blocks_of(document):
        if language in ("", "conf", "sh") or excused:
            continue
        if language == "yaml":
            if not any(text in Path(file).read_text() for file in ("compose.yaml", "packaging/kubernetes.yaml")):
                fail(f"{document}: this block is in no file that is tested:\n{text}")
        elif language == "bash":
            numbers[heading] = numbers.get(heading, 0) + 1
            print(f"{heading}, {numbers[heading]}")
        else:
            fail(f"{document}: a block in {language} that no test runs:\n{text}")


def docker():
    text = re.sub(r"(?m)^#.*\n", "", Path("Dockerfile").read_text())
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip():
            continue
        keyword, rest = line.split(None, 1)
        if keyword == "RUN":
            words = [rest]
        elif keyword == "CMD":
            words = json.loads(rest)
        elif keyword in ("ARG", "FROM", "WORKDIR", "COPY"):
            words = rest.split()
        else:
            fail(f"Dockerfile: {keyword} is not tested")
        print(f"docker_{keyword}", shlex.join(words))


def variable(name, words):
    print(f"{name}=({shlex.join(str(word) for word in words)})")


def compose():
    import jsonschema
    import yaml
    from importlib.metadata import files

    file = yaml.safe_load(Path("compose.yaml").read_text())
    schema = next(path for path in files("docker-compose") if path.name == "compose_spec.json")
    jsonschema.validate(file, json.loads(schema.read_text()))
    service = file["services"]["redis"]
    if not all(port.startswith("127.0.0.1:") for port in service["ports"]):
        fail("compose.yaml: the port is not only on the loopback interface")
    if not all(volume.split(":")[0] in file["volumes"] for volume in service["volumes"]):
        fail("compose.yaml: a volume is not defined")
    kind, *check = service["healthcheck"]["test"]
    if kind != "CMD":
        fail(f"compose.yaml: a health check of the kind {kind} is not tested")
    variable("command", service["command"])
    variable("check", check)


def kubernetes():
    import kubernetes_validate
    import yaml

    documents = list(yaml.safe_load_all(Path("packaging/kubernetes.yaml").read_text()))
    for document in documents:
        kubernetes_validate.validate(document, "1.37", strict=True)
    service, stateful = documents
    pod = stateful["spec"]["template"]
    if service["spec"]["selector"] != pod["metadata"]["labels"]:
        fail("kubernetes.yaml: the service does not select the pod")
    (init,), (server,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    mounts = [mount["name"] for container in (init, server) for mount in container["volumeMounts"]]
    volumes = [volume["name"] for volume in pod["spec"]["volumes"]]
    volumes += [claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]]
    if set(mounts) != set(volumes):
        fail("kubernetes.yaml: mounts and volumes differ")
    variable("bring", init["command"])
    variable("command", server["args"])
    variable("check", server["readinessProbe"]["exec"]["command"])
    variable("user", [pod["spec"]["securityContext"]["runAsUser"]])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        fail(__doc__)
    {"block": block, "blocks": blocks, "docker": docker, "compose": compose, "kubernetes": kubernetes}[sys.argv[1]](*sys.argv[2:])
