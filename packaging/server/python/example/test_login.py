import pytest
import redis
from login import may_try


@pytest.fixture
def client(rl_server):
    with redis.Redis.from_url(rl_server.url) as client:
        yield client


def test_the_sixth_attempt_is_refused(client):
    assert [may_try(client, "ada") for _ in range(6)] == [True] * 5 + [False]


def test_each_name_has_its_own_limit(client):
    assert may_try(client, "ada") and may_try(client, "bob")
