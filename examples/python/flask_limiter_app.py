"""flask-limiter with the storage of redis-rl: start it with `flask --app flask_limiter_app run`. A hit is sent once, and a window
never grants more than its limit."""

import os

import redis_rl.limits_storage  # noqa: F401: registers its URI schemes
from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

app = Flask(__name__)
limiter = Limiter(
    get_remote_address,
    app=app,
    storage_uri=os.environ.get("LIMITS_URI", "redis-rl://localhost:6379"),
    strategy="moving-window",
    default_limits=["10 per minute"],
    headers_enabled=True,
)


@app.get("/")
def home():
    return "hello\n"


@app.get("/export")
@limiter.limit("2 per hour")
def export():
    return "the data\n"
