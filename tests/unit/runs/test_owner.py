from __future__ import annotations

import os
import subprocess
import sys

from dynbench.runs.run_record import host_name, is_gone, start_mark


def test_this_process_is_there() -> None:
    assert not is_gone(host_name(), os.getpid(), start_mark(os.getpid()))
    assert not is_gone(host_name(), os.getpid(), None)


def test_a_later_process_with_the_same_number_is_another() -> None:
    assert is_gone(host_name(), os.getpid(), "00000000:1")


def test_a_process_that_ended_is_gone_even_before_it_is_reaped() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = start_mark(child.pid)
    assert mark is not None
    assert not is_gone(host_name(), child.pid, mark)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(host_name(), child.pid, mark)
    child.communicate()
    assert is_gone(host_name(), child.pid, mark)
    assert is_gone(host_name(), child.pid, None)


def test_other_machines_are_never_certain() -> None:
    assert not is_gone("elsewhere", 2**22 + 1, None)
