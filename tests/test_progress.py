"""Progress: callbacks, plain lines against a fake clock, and the bar on a pseudo-terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from types import SimpleNamespace

import pytest

from onebasin import progress
from onebasin.progress import Reporter, check_progress, clock, reporting

pytestmark = pytest.mark.fast


class FakeClock:
    """A monotonic clock that stands still until it is advanced."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=fake.monotonic))
    return fake


def test_a_callback_gets_task_done_and_total():
    seen = []
    with reporting(lambda *args: seen.append(args)) as report:
        report("draws", 1, 2)
        report("draws", 2, 2, "accept 0.8")
    assert seen == [("draws", 1, 2), ("draws", 2, 2)]


def test_a_reporter_is_a_progress_for_inner_functions():
    """It is passed on as it is, and only the outermost block closes it."""

    class Recorded(Reporter):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    outer = Recorded()
    check_progress(outer)
    with reporting(outer) as inner:
        assert inner is outer
    assert outer.closed == 0
    with reporting("silent") as own, reporting(own) as inner:
        assert inner is own


def test_the_reporter_is_closed_after_an_error(monkeypatch):
    closed = []
    monkeypatch.setattr(progress._Lines, "close", lambda *reporter: closed.append(reporter))
    with pytest.raises(KeyError), reporting("plain"):
        raise KeyError
    assert len(closed) == 1


def test_plain_lines_wait_for_the_delay(fake_clock, capsys):
    with reporting("plain") as report:
        report("draws", 0, 10)
        fake_clock.now += 1.9
        report("draws", 1, 10)
        assert capsys.readouterr().err == ""
        fake_clock.now += 0.1
        report("draws", 2, 10)
        # Two steps took 2 s; eight remain.
        assert capsys.readouterr().err == "draws: 2/10  0:08 left\n"
        fake_clock.now += 4.9
        report("draws", 5, 10)
        assert capsys.readouterr().err == ""
        fake_clock.now += 0.1
        report("draws", 7, 10)
        assert capsys.readouterr().err == "draws: 7/10  0:03 left\n"
        fake_clock.now += 0.1
        report("draws", 10, 10)  # the end is always reported
        assert capsys.readouterr().err == "draws: 10/10  0:00 left\n"


def test_plain_lines_with_figures_need_no_delay(fake_clock, capsys):
    with reporting("plain") as report:
        report("epochs", 1, 3, "loss 0.5")
        assert capsys.readouterr().err == "epochs: 1/3  0:00 left  loss 0.5\n"
        report("epochs", 2, 3, "loss 0.4")
        assert capsys.readouterr().err == ""
        report("epochs", 3, 3, "loss 0.3")
        assert capsys.readouterr().err == "epochs: 3/3  0:00 left  loss 0.3\n"


def test_short_computations_print_nothing(fake_clock, capsys):
    for style in ("plain", "bar", "silent", "auto"):
        with reporting(style) as report:
            report("draws", 1, 2)
            report("draws", 2, 2)
    assert capsys.readouterr() == ("", "")


def test_auto_is_plain_without_a_terminal(fake_clock, capsys):
    with reporting("auto") as report:
        report("epochs", 1, 3, "loss 0.5")
    assert capsys.readouterr().err == "epochs: 1/3  0:00 left  loss 0.5\n"


def on_a_terminal(program: str, columns: int = 80) -> str:
    """What a program prints to a pseudo-terminal of this width, without escape sequences."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment | {"TERM": "xterm"},
    ) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # Linux reports the end of the other side as an error
                break
            if not chunk:
                break
            output += chunk
    os.close(ours)
    assert process.returncode == 0, output
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())


BAR = """
import time
from onebasin.progress import reporting
with reporting("auto") as report:
    report("warm-up", 1, 1, "step size 0.1")
    for done in range(4):
        report("draws", done, 3, "acceptance 0.87  " + "divergences 0  " * 10)
        time.sleep(0.02)
"""


def test_the_bar_on_a_terminal_of_80_columns():
    lines = re.split(r"[\r\n]+", on_a_terminal(BAR))
    final = [line for line in lines if line.strip()][-1]
    assert final.startswith("draws 3/3 0:00:00 ")
    assert "acceptance 0.87" in final
    assert all(len(line) <= 80 for line in lines)


LONG_BAR = """
import time
from onebasin.progress import reporting
with reporting("auto") as report:
    for done in (123450, 123453):
        report("AdjustedMCLMC, step", done, 123453, "loss 2.131  transitions 0  acceptance 0.87")
        time.sleep(0.15)
    report.note("what the user should know")
"""


@pytest.mark.parametrize("columns", [60, 80])
def test_step_and_time_left_keep_their_room(columns):
    lines = re.split(r"[\r\n]+", on_a_terminal(LONG_BAR, columns))
    *_, final, note = [line for line in lines if line.strip()]
    assert "AdjustedMCLMC, step 123453/123453 0:00:00 " in final
    assert ("loss 2.131" in final) == (columns == 80)  # whole figures or none
    assert note == "note: what the user should know"


def test_durations():
    assert [clock(s) for s in (0, 59.6, 3599, 3600)] == ["0:00", "1:00", "59:59", "1:00:00"]


@pytest.mark.parametrize("bad", ["loud", None, 3, ""])
def test_bad_styles_are_refused(bad):
    message = f"progress must be one of 'auto', 'bar', 'plain', 'silent' or a function, got {bad!r}"
    with pytest.raises(ValueError, match=re.escape(message)), reporting(bad):
        pass
