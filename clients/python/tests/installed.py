"""Uses the package as pip has installed it, on a server."""

import importlib.metadata
import os
import pathlib
import subprocess
import tempfile
import time

import redis

import redis_rl

assert "site-packages" in redis_rl.__file__, redis_rl.__file__
assert importlib.metadata.version("redis-rl") == redis_rl.__version__
assert (pathlib.Path(redis_rl.__file__).parent / "py.typed").exists()
cargo = pathlib.Path(__file__).resolve().parents[3] / "Cargo.toml"
assert f'\nversion = "{redis_rl.__version__}"\n' in cargo.read_text(), "the package and the module have different versions"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="redis-rl-") as folder:
        socket = f"{folder}/s"
        command = [os.environ["REDIS_RL_SERVER"], "--port", "0", "--unixsocket", socket, "--dir", folder, "--save", ""]
        server = subprocess.Popen([*command, "--loadmodule", os.environ["REDIS_RL_MODULE"]], stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while not pathlib.Path(socket).exists():
                assert server.poll() is None and time.monotonic() < deadline, "the server did not start"
                time.sleep(0.01)
            client = redis.Redis(unix_socket_path=socket)
            decision = redis_rl.Limits(client, timeout=20, connect_timeout=20).limit("api", redis_rl.Gcra("10/m")).take("a")
            assert decision.granted == 1 and decision.remaining == 9
        finally:
            server.kill()
            server.wait()
    print(f"redis-rl {redis_rl.__version__} works, installed by pip")


main()
