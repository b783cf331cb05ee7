from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
import redis

from calendar_limit import PERIODS, CalendarLimit, end_of
from conftest import inspect, server_s

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def client(socket):
    with redis.Redis(unix_socket_path=socket) as client:
        yield client


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "unit, now, end",
    [
        ("day", "2026-11-21T22:59:59", "2026-11-21T23:00:00"),
        ("day", "2026-11-21T23:00:00", "2026-11-22T23:00:00"),
        # The clocks go forward on 29 March and back on 25 October: these days have 23 and 25 hours.
        ("day", "2026-03-28T23:00:00", "2026-03-29T22:00:00"),
        ("day", "2026-03-29T12:00:00", "2026-03-29T22:00:00"),
        ("day", "2026-10-24T22:00:00", "2026-10-25T23:00:00"),
        ("day", "2026-10-25T00:30:00", "2026-10-25T23:00:00"),
        ("day", "2026-10-25T01:30:00", "2026-10-25T23:00:00"),
        ("week", "2026-03-22T23:00:00", "2026-03-29T22:00:00"),
        ("week", "2026-10-25T22:59:59", "2026-10-25T23:00:00"),
        ("week", "2026-10-18T22:00:00", "2026-10-25T23:00:00"),
        ("month", "2026-02-28T12:00:00", "2026-02-28T23:00:00"),
        ("month", "2028-02-28T23:00:00", "2028-02-29T23:00:00"),
        ("month", "2026-03-31T21:59:59", "2026-03-31T22:00:00"),
        ("month", "2026-09-30T22:00:00", "2026-10-31T23:00:00"),
        ("month", "2026-12-31T23:00:00", "2027-01-31T23:00:00"),
    ],
)
def test_windows_end_in_berlin(unit, now, end):
    assert end_of(unit, BERLIN, utc(now)) == utc(end).timestamp()


def test_a_midnight_that_the_clocks_skip():
    # In Havana the clocks go from 00:00 to 01:00 on the second Sunday of March, since 2013.
    havana = ZoneInfo("America/Havana")
    assert end_of("day", havana, utc("2026-03-07T12:00:00")) == utc("2026-03-08T05:00:00").timestamp()
    assert end_of("day", havana, utc("2026-03-08T12:00:00")) == utc("2026-03-09T04:00:00").timestamp()


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Auckland"])
@pytest.mark.parametrize("unit", ["day", "week", "month"])
def test_no_window_is_longer_than_the_period_less_an_hour(unit, zone):
    zone, now = ZoneInfo(zone), utc("2026-01-01T00:00:00")
    longest = timedelta(hours=int(PERIODS[unit].removesuffix("h")) - 1).total_seconds()
    while now.year < 2030:
        end = datetime.fromtimestamp(end_of(unit, zone, now), timezone.utc)
        assert 0 < (end - now).total_seconds() <= longest or now == utc("2026-01-01T00:00:00")
        now = end


@pytest.mark.parametrize("unit", ["day", "week", "month"])
def test_all_callers_of_a_day_share_a_window(client, unit):
    limit = CalendarLimit(client, unit, 10, "Europe/Berlin")
    now = datetime.fromtimestamp(server_s(client), timezone.utc)
    assert limit.take("quota", 4)[:3] == [4, 10, 6]
    end = inspect(client, "quota")["window_end_ms"]
    # A midnight may pass in between.
    assert end in {1000 * end_of(unit, BERLIN, moment) for moment in (now, now + timedelta(minutes=1))}
    # Another caller's clock is fast or slow.
    assert limit.take("quota", now=now + timedelta(days=1))[:3] == [1, 10, 5]
    assert limit.take("quota", now=now - timedelta(days=32))[:3] == [1, 10, 4]
    assert inspect(client, "quota")["window_end_ms"] == end
    assert limit.take("quota", 5)[0] == 0


def test_a_take_whose_replies_are_lost_is_charged_once(client, proxy):
    losses = [("reply", "RL.FIXED")] * 2
    for loss in losses:
        proxy.lose(*loss)
    with redis.Redis(unix_socket_path=proxy.server_address) as lossy:
        limit = CalendarLimit(lossy, "month", 10, "Europe/Berlin")
        assert limit.take("quota", 3)[:3] == [3, 10, 7]
        assert proxy.lost == losses and inspect(client, "quota")["used"] == 3
        assert limit.take("quota", 3)[:3] == [3, 10, 4]
