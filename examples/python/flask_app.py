"""Flask: 20 requests at once for each address, then one every 600 ms. One route has a limit of its own.
Start it with `flask --app flask_app run`.

A denied request is answered with 429, and all answers have the headers. Without a decision of Redis, this program lets requests
through (`on_down="open"`); with "closed", the default, it would answer 503."""

import os

import flask
import redis
from redis_rl import Fixed, Gcra, Limits
from redis_rl.flask import FlaskLimits, client_address

limits = Limits(redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost")), prefix="web:", on_down="open")
api = limits.limit("api", Gcra("100/m", burst=20))
exports = limits.limit("export", Fixed("2/h"))

app = flask.Flask(__name__)
limited = FlaskLimits(app)


@app.before_request
def limit_all():
    limited.take(api, client_address())


@app.get("/")
def home():
    return "hello\n"


@app.get("/export")
@limited(exports)
def export():
    return "the data\n"
