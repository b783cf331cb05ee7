"""Reads the files that scripts/packages.sh tests, so that the script runs what these say and not a copy of it.

Usage:
  packages.py block DOCUMENT HEADING N      the Nth `bash` block below a heading
  packages.py blocks DOCUMENT               for each block in another language than the tests of README.md run: HEADING, N
  packages.py docker                        the steps of the Dockerfile, as calls of shell functions
  packages.py compose [PASSWORD]            checks compose.yaml, and prints shell variables: its command, its environment and its
                                            health check, when REDISCLI_AUTH has this value or is not set
  packages.py kubernetes PASSWORD           checks packaging/kubernetes.yaml, and prints shell variables; the Secret has PASSWORD
"""

import json
import re
import shlex
import sys
from pathlib import Path


def fail(message):
    sys.exit(message)


def blocks_of(document):
    """Yields for each code block: the heading above it, its language, its text, and whether the first line of the paragraph
    before it, which may be a comment, has "Not run in tests:"."""
    heading, language, lines, paragraph, empty = "", None, [], "", True
    for line in Path(document).read_text().splitlines():
        if language is not None:
            if line == "```":
                yield heading, language, "\n".join(lines) + "\n", "Not run in tests:" in paragraph
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


def compose(password=None):
    import jsonschema
    import yaml
    from importlib.metadata import files

    known = {} if password is None else {"REDISCLI_AUTH": password}
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
    # As compose does: ${NAME:-default}, and a variable without a value is passed on if it is set.
    words = [re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: known.get(match[1]) or match[2], word) for word in service["command"]]
    if any("=" in name or "$" in name for name in service["environment"]) or any("$" in word for word in words):
        fail("compose.yaml: a variable of this form is not tested")
    variable("command", words)
    variable("environment", [f"{name}={known[name]}" for name in service["environment"] if name in known])
    variable("check", check)


def size(text):
    """The bytes that the server or Kubernetes understands."""
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * {"mb": 2**20, "gb": 2**30, "Mi": 2**20, "Gi": 2**30}[unit]


def kubernetes(password):
    import kubernetes_validate
    import yaml

    documents = list(yaml.safe_load_all(Path("packaging/kubernetes.yaml").read_text()))
    for document in documents:
        kubernetes_validate.validate(document, "1.37", strict=True)
    service, policy, stateful = documents
    pod = stateful["spec"]["template"]
    labels = pod["metadata"]["labels"]
    if not labels == service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"]:
        fail("kubernetes.yaml: the service or the network policy does not select the pod")
    if policy["spec"]["policyTypes"] != ["Ingress"] or not all(rule.get("from") for rule in policy["spec"]["ingress"]):
        fail("kubernetes.yaml: the network policy lets everybody in")
    if pod["spec"].get("automountServiceAccountToken") is not False:
        fail("kubernetes.yaml: the pod has a token of the cluster")
    (init,), (server,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    mounts = [mount["name"] for container in (init, server) for mount in container["volumeMounts"]]
    volumes = [volume["name"] for volume in pod["spec"]["volumes"]]
    volumes += [claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]]
    if set(mounts) != set(volumes):
        fail("kubernetes.yaml: mounts and volumes differ")
    ports = [port["containerPort"] for port in server["ports"]]
    if [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]] != ports:
        fail("kubernetes.yaml: the network policy is for another port")
    for container in (init, server):
        if container["resources"]["requests"]["memory"] != container["resources"]["limits"]["memory"]:
            fail("kubernetes.yaml: a container is not sure to get its memory")
    # As Kubernetes does: a container gets the values of the Secret, and its arguments the values of its environment.
    environment = {entry["name"]: password for entry in server["env"] if entry["valueFrom"]["secretKeyRef"]}
    args = [re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], word) for word in server["args"]]
    option = dict(zip(args, args[1:]))
    if option["--requirepass"] != password or option["--maxmemory-policy"] != "noeviction":
        fail("kubernetes.yaml: the server has no password, or evicts limiters")
    if size(option["--maxmemory"]) * 2 > size(server["resources"]["limits"]["memory"]):
        fail("kubernetes.yaml: the server may need more memory than the pod has")
    variable("bring", init["command"])
    variable("command", args)
    variable("environment", [f"{name}={value}" for name, value in environment.items()])
    variable("check", server["readinessProbe"]["exec"]["command"])
    variable("alive", server["livenessProbe"]["exec"]["command"])
    variable("user", [pod["spec"]["securityContext"]["runAsUser"]])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        fail(__doc__)
    {"block": block, "blocks": blocks, "docker": docker, "compose": compose, "kubernetes": kubernetes}[sys.argv[1]](*sys.argv[2:])
