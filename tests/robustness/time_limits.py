"""A limit on the time of a call that is fair on a busy machine."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

WAITING = 30  # how many times the limit a call may wait without computing


@contextmanager
def time_limit(seconds: float, error: BaseException) -> Iterator[None]:
    """Raise `error` after so many seconds of computing, or far more of waiting."""

    def ring(*_: object) -> None:
        raise error

    timers = {signal.SIGPROF: signal.ITIMER_PROF, signal.SIGALRM: signal.ITIMER_REAL}
    before = {number: signal.signal(number, ring) for number in timers}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, WAITING * seconds)
    try:
        yield
    finally:
        for number, timer in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])
