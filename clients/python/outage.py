"""How many requests a second are served while Redis is up, stopped (SIGSTOP), refuses connections, or is gone (nothing answers): by
Flask under gunicorn with 4 workers, and by FastAPI under uvicorn, each with a limit whose on_down is "open".

Usage: outage.py [--seconds 5] [--workers 4]. It needs flask, gunicorn, fastapi and uvicorn; REDIS_RL_MODULE is the module, and
REDIS_RL_SERVER the server, if it is not redis-server. For each case it prints a line of JSON."""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ADDRESS = "127.0.0.1"


def flask_app():
    import flask
    import redis
    from redis_rl import Gcra, Limits
    from redis_rl.flask import FlaskLimits

    app = flask.Flask("outage")
    limits = Limits(redis.Redis(ADDRESS, int(os.environ["REDIS_PORT"])), on_down="open")

    @app.get("/")
    @FlaskLimits(app)(limits.limit("api", Gcra("1000000/s")))
    def home():
        return {"let_through": limits.let_through}

    return app


def fastapi_app():
    import redis.asyncio
    from fastapi import FastAPI
    from redis_rl import AsyncLimits, Gcra
    from redis_rl.starlette import RateLimitMiddleware

    app = FastAPI()
    limits = AsyncLimits(redis.asyncio.Redis(host=ADDRESS, port=int(os.environ["REDIS_PORT"])), on_down="open")
    app.add_middleware(RateLimitMiddleware, limit=limits.limit("api", Gcra("1000000/s")))

    @app.get("/")
    async def home():
        return {"let_through": limits.let_through}

    return app


def free_port():
    with socket.create_server((ADDRESS, 0)) as listener:
        return listener.getsockname()[1]


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection((ADDRESS, port), 1):
        return True


@contextlib.contextmanager
def running(command, port, **more):
    """Runs a program until it listens on this port."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)
    try:
        deadline = time.monotonic() + 60
        while not answers(port):
            assert process.poll() is None and time.monotonic() < deadline, f"{command[0]} does not run"
            time.sleep(0.05)
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        process.wait(30)


@contextlib.contextmanager
def deaf(port):
    """Connections to this port get no answer: its queue is full."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, port))
        listener.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex((ADDRESS, port))
        yield


def served(port, seconds, clients=16):
    """Asks for so long, and returns what was counted."""
    counts, stop = {"served": 0, "failed": 0, "let_through": 0}, time.monotonic() + seconds
    lock = threading.Lock()

    def ask():
        while time.monotonic() < stop:
            connection = http.client.HTTPConnection(ADDRESS, port, timeout=30)
            begin = time.monotonic()
            try:
                connection.request("GET", "/")
                answer = connection.getresponse()
                body, status = json.loads(answer.read()), answer.status
            except (OSError, ValueError, http.client.HTTPException):
                body, status = {}, 0
            finally:
                connection.close()
            with lock:
                counts["served" if status == 200 else "failed"] += 1
                counts["let_through"] = max(counts["let_through"], body.get("let_through", 0))
                counts["slowest_ms"] = max(counts.get("slowest_ms", 0), round((time.monotonic() - begin) * 1000))

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {**counts, "a_second": round(counts["served"] / seconds)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    folder = pathlib.Path(__file__).resolve().parent
    for web in ("gunicorn", "uvicorn"):
        for state in ("up", "stopped", "refusing", "gone"):
            port, redis_port = free_port(), free_port()
            environment = {**os.environ, "REDIS_PORT": str(redis_port)}
            module = [sys.executable, "-B", "-m", web]
            if web == "gunicorn":
                command = [*module, "-w", options.workers, "-b", f"{ADDRESS}:{port}", "outage:flask_app()"]
            else:
                command = [*module, "--factory", "--host", ADDRESS, "--port", port, "outage:fastapi_app"]
            server = [os.environ.get("REDIS_RL_SERVER", "redis-server"), "--port", redis_port, "--bind", ADDRESS, "--save", ""]
            with tempfile.TemporaryDirectory(prefix="redis-rl-") as home, contextlib.ExitStack() as stack:
                server += ["--dir", home, "--loadmodule", os.environ["REDIS_RL_MODULE"]]
                with running(server, redis_port) as process, running(command, port, cwd=folder, env=environment):
                    # All workers have connections.
                    served(port, 1)
                    if state == "stopped":
                        process.send_signal(signal.SIGSTOP)
                    elif state != "up":
                        process.kill()
                        process.wait()
                    if state == "gone":
                        stack.enter_context(deaf(redis_port))
                    print(json.dumps({"web": web, "server": state, **served(port, options.seconds)}), flush=True)


if __name__ == "__main__":
    main()
