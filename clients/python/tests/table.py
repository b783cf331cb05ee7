"""Runs the cases of clients/behaviour.json, with limits of threads and of asyncio."""

import inspect
import json
import pathlib
import time

import httpx

import redis_rl

TABLE = json.loads((pathlib.Path(__file__).resolve().parents[2] / "behaviour.json").read_text())
POLICIES = {
    "fixed": redis_rl.Fixed,
    "slide": redis_rl.Slide,
    "gcra": redis_rl.Gcra,
    "bucket": redis_rl.Bucket,
    "lease": redis_rl.Lease,
}


def policy_of(facts):
    arguments = dict(facts)
    return POLICIES[arguments.pop("type")](**arguments)


def key_of(key):
    if isinstance(key, dict):
        return bytes.fromhex(key["hex"]) if "hex" in key else key["text"] * key["repeat"]
    return key


def response_of(facts):
    """A response as httpx makes it."""
    return httpx.Response(facts["status"], headers=facts["headers"])


def error_of(name):
    return getattr(redis_rl, name)


def within(value, expected):
    if isinstance(expected, list) and value is not None:
        return expected[0] <= value <= expected[1]
    return value is expected if expected is None or isinstance(expected, bool) else value == expected


class Own(Exception):
    """What a body raises in a case."""


async def value(result):
    return await result if inspect.isawaitable(result) else result


class Table:
    """`limits` is what the package makes; `send` sends a command by a client of the test."""

    def __init__(self, limits, send):
        self.limits = limits
        self.send = send

    async def run(self, case):
        policies = {name: policy_of(facts) for name, facts in case["limits"].items()}
        known = {name: self.limits.limit(name, policy) for name, policy in policies.items()}
        await self.steps(case["steps"], known)

    async def steps(self, steps, known):
        for step in steps:
            try:
                await self.step(step, known)
            except AssertionError as error:
                raise AssertionError(f"{step}: {error}") from error

    async def step(self, step, known):
        if "server" in step:
            reply = self.send(*step["server"])
            assert reply_is(reply, step["reply"]), reply
            return
        expect = step["expect"]
        if "error" not in expect:
            self.check(await self.call(step, known), expect)
            return
        try:
            result = await self.call(step, known)
        except error_of(expect["error"]) as error:
            if "retry_after" in expect:
                assert within(error.retry_after, expect["retry_after"]), error.retry_after
            if isinstance(error, redis_rl.RateLimited):
                assert error.headers() == error.decision.headers()
                assert ("RateLimit" in error.headers()) is (error.decision.source != "down")
                assert error.problem()["violated-policies"] == [error.decision.name]
            return
        raise AssertionError(f"no error, but {result}")

    async def call(self, step, known):
        limit = known[step["limit"]] if "limit" in step else next(iter(known.values()))
        kind = step["call"]
        options = {name: key_of(step[name]) for name in ("cost", "wait", "id") if name in step}
        if kind == "all":
            rules = [(known[name], key_of(key), cost) for name, key, cost in step["rules"]]
            return await value(self.limits.all(rules, **options))
        key = key_of(step["key"])
        if kind == "hold" and "cost" in options:
            options["units"] = options.pop("cost")
        if kind in ("take", "peek"):
            return await value(getattr(limit, kind)(key, **options))
        if kind in ("take_up_to", "force", "refund"):
            return await value(getattr(limit, kind)(key, step["units"]))
        if kind in ("wait", "reserve"):
            return await value(getattr(limit, kind)(key, step["seconds"], **options))
        if kind == "until":
            return await value(limit.until(key, time.time() + step["until_in"], **options))
        if kind == "settle":
            return await value(limit.settle(key, step["id"], step["units"]))
        if kind == "pause":
            return await value(limit.pause(key, step["seconds"]))
        if kind == "resume":
            return await value(limit.resume(key))
        if kind == "observe":
            most = {"max_pause": step["max_pause"]} if "max_pause" in step else {}
            return await value(limit.observe(key, response_of(step["response"]), **most))
        if kind in ("release", "renew"):
            return await value(getattr(limit, kind)(key, step["id"]))
        if kind == "admit":
            return await self.body(limit.admit(key, **options), step, known)
        if kind == "charge":
            return await self.body(limit.charge(key, step["estimate"], **options), step, known)
        assert kind == "hold"
        return await self.body(limit.hold(key, **options), step, known)

    async def body(self, manager, step, known):
        """Runs a block. Returns the decision that it got."""
        result = None
        try:
            if hasattr(manager, "__aenter__"):
                async with manager as result:
                    await self.inside(result, step, known)
            else:
                with manager as result:
                    await self.inside(result, step, known)
        except Own:
            assert step.get("raises")
        else:
            assert not step.get("raises")
        return getattr(result, "decision", result)

    async def inside(self, result, step, known):
        steps = step.get("inside", [])
        check = {"check": True} in steps
        await self.steps([each for each in steps if each != {"check": True}], known)
        if check:
            await value(result.renew())
        if "used" in step:
            result.used = step["used"]
        if step.get("raises"):
            raise Own

    def check(self, result, expect):
        if expect.get("none"):
            assert result is None, result
            return
        if "seconds" in expect:
            assert within(result, expect["seconds"]), result
            return
        for name, expected in expect.items():
            if name == "headers":
                assert result.headers() == expected, result.headers()
            elif name == "decisions":
                assert len(result.decisions) == len(expected)
                for decision, facts in zip(result.decisions, expected):
                    self.check(decision, facts)
            elif name == "has_id":
                assert (result.id is not None) is expected
            else:
                assert within(getattr(result, name), expected), f"{name} of {result}"
        assert bool(result) is result.allowed


def reply_is(reply, expected):
    if isinstance(expected, list) and isinstance(reply, list):
        return len(reply) == len(expected) and all(within(each, wanted) for each, wanted in zip(reply, expected))
    if isinstance(reply, bytes):
        reply = reply.decode()
    return (reply is True and expected == "OK") or reply == expected
