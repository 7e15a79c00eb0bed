"""Token buckets and counts by key: exact, and small however many come."""

import concurrent.futures

import pytest

from pagermcp.limits import Bucket, Headcount


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that buckets see, to be set."""
    now = [1000.0]
    monkeypatch.setattr("pagermcp.limits.time.monotonic", lambda: now[0])
    return now


def test_a_bucket_holds_what_may_be_taken_in_an_hour_and_says_when_there_is_more(clock: list[float]) -> None:
    bucket = Bucket(4)
    assert [bucket.take("a") for _ in range(5)] == [0, 0, 0, 0, 900]
    assert bucket.take("b") == 0
    clock[0] += 600
    assert bucket.take("a") == 300  # and asking in vain takes nothing
    clock[0] += 300
    assert [bucket.take("a"), bucket.take("a")] == [0, 900]
    clock[0] += 7200  # it does not run over
    assert [bucket.take("a") for _ in range(5)] == [0, 0, 0, 0, 900]


@pytest.mark.parametrize("per_hour", [1, 3, 7, 120, 36_000])
def test_a_full_bucket_gives_exactly_as_many_at_once(clock: list[float], per_hour: int) -> None:
    for n in range(1_000_000 // (per_hour + 1000)):  # sums of such times are rounded up or down
        clock[0] = 0.1 + 777.7 * n
        bucket = Bucket(per_hour)
        assert sum(not bucket.take("a") for _ in range(per_hour + 10)) == per_hour


def test_zero_is_no_limit() -> None:
    bucket, count = Bucket(0), Headcount(0)
    assert not any(bucket.take("a") for _ in range(10_000))
    assert not any(count.enter("a") for _ in range(10_000))


def test_many_who_come_once_are_forgotten_as_soon_as_their_buckets_are_full_again(clock: list[float]) -> None:
    bucket = Bucket(36_000)  # a token in a tenth of a second
    most = 0
    for n in range(200_000):
        clock[0] += 0.001
        bucket.take(str(n))
        most = max(most, len(bucket))
    assert most < 3000


def test_threads_take_no_more_than_there_is() -> None:
    bucket = Bucket(1000)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        taken = threads.map(lambda _: sum(not bucket.take("a") for _ in range(500)), range(8))
    assert 1000 <= sum(taken) <= 1001  # by and by there is another one


def test_a_count_says_by_how_many_it_is_too_high_and_forgets_who_has_left() -> None:
    count = Headcount(2)
    assert [count.enter("a") for _ in range(4)] == [0, 0, 1, 2]
    assert count.enter("b") == count.enter(None) == 0
    for _ in range(2):
        count.leave("a")
    count.leave(None)
    assert count.enter("a") == 1
    with pytest.raises(KeyError):
        count.leave("c")
