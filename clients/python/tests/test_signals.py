"""An exception that a signal raises while a block is entered: nothing stays charged, and no thread goes on."""

import threading

import pytest
import redis

from conftest import PATIENCE, eventually, inspect
from helpers import HOUR, held, used
from redis_rl import Lease, Limits, _sync


class Late(Exception):
    """As SoftTimeLimitExceeded of Celery: no BaseException."""


def opened(limits, call):
    jobs, tokens = limits.limit("jobs", Lease(1, 60)), limits.limit("tokens", HOUR)
    if call == "hold":
        return jobs.hold("a")
    if call == "charge":
        return tokens.charge("a", 100)
    return limits.admit([(jobs, "a"), (tokens, "a")], 100)


def raises(error, condition, function):
    """The function raises this, once, after it has returned, as a signal does that arrives just then."""
    raised = []

    def changed(*args, **kwargs):
        result = function(*args, **kwargs)
        if not raised and condition(*args):
            raised.append(error)
            raise error
        return result

    return changed


@pytest.mark.parametrize("error", [Late, KeyboardInterrupt])
@pytest.mark.parametrize("call", ["hold", "charge", "admit"])
@pytest.mark.parametrize("when", ["reply", "end of the flow", "thread"])
def test_a_signal_while_a_block_is_entered(when, call, error, socket, client, monkeypatch):
    threads = [each for each in threading.enumerate() if each.name == "redis-rl-lease"]
    with Limits(redis.Redis(unix_socket_path=socket), patience=PATIENCE) as limits:
        if when == "reply":
            first = lambda self, operation: str(operation.words[0]) in ("RL.LEASE", "RL.FIXED", "RL.ALL")
            monkeypatch.setattr(_sync._Node, "send", raises(error, first, _sync._Node.send))
        elif when == "end of the flow":
            monkeypatch.setattr(_sync.SyncIO, "run", raises(error, lambda *_: True, _sync.SyncIO.run))
        elif call != "charge":
            monkeypatch.setattr(threading.Thread, "start", raises(error, lambda *_: True, threading.Thread.start))
        else:
            return
        with pytest.raises(error), opened(limits, call):
            pytest.fail("the block runs")
        assert (held(client, "jobs:a"), used(client, "tokens:a")) == (0, 0)
    stays = lambda: [each for each in threading.enumerate() if each.name == "redis-rl-lease" and each not in threads]
    eventually(lambda: not stays())


@pytest.mark.parametrize("call", ["hold", "charge", "admit"])
def test_a_signal_while_a_block_ends(call, socket, client, monkeypatch):
    with Limits(redis.Redis(unix_socket_path=socket), patience=PATIENCE) as limits:
        with pytest.raises(Late), opened(limits, call) as block:
            if call != "hold":
                block.used = 130
            ends = lambda self, operation: True
            # Once without the call, as if it had arrived before.
            interrupted = raises(Late, ends, lambda *_: None)
            send = _sync._Node.send
            calls = []
            monkeypatch.setattr(
                _sync._Node, "send", lambda *args: calls.append(1) or (interrupted if len(calls) == 1 else send)(*args)
            )
        assert (held(client, "jobs:a"), used(client, "tokens:a")) == (0, 0 if call == "hold" else 130)
        assert inspect(client, "jobs:a") is None
