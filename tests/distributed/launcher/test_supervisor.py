# SPDX-License-Identifier: Apache-2.0
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(60)]

WAIT = "print('ready'); time.sleep(50)"


def test_others_may_report_when_a_rank_fails_and_its_status_is_returned(space, engine):
    code = """
if rank == 1:
    sys.exit(7)
time.sleep(0.7)
sys.exit(f"rank {rank} misses rank 1")
"""
    status, output = space.run(code, "-n", "3", "--engine", engine)
    assert status == 7
    assert "rank 1 ended with exit status 7; ranks [0, 2] have 15 s to end" in output
    assert "[0] rank 0 misses rank 1" in output
    assert "[2] rank 2 misses rank 1" in output
    assert "SIGTERM" not in output


def test_a_killed_rank_is_named_and_the_others_are_ended(space, engine):
    code = """
if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
subprocess.run(["sleep", "50"])
"""
    begin = time.monotonic()
    status, output = space.run(code, "-n", "2", "--engine", engine, "--grace", "0.5")
    assert status == 128 + 9
    assert "rank 0 died by signal 9 (SIGKILL); ranks [1] have 0.5 s to end" in output
    assert "sending SIGTERM to ranks [1]" in output
    assert "rank 1 died by signal 15 (SIGTERM)" in output
    assert time.monotonic() - begin < 15


def test_a_rank_that_ignores_sigterm_is_killed(space):
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.exit(3) if rank else time.sleep(50)
"""
    status, output = space.run(code, "-n", "2", "--engine", "collective", "--grace", "0.5")
    assert status == 3
    assert "sending SIGKILL to ranks [0]" in output
    assert "rank 0 died by signal 9 (SIGKILL)" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_forwarded_and_may_be_handled(space, engine, number):
    code = """
def end(number, frame):
    print("got", number)
    sys.exit(0)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
"""
    with space.start(code + WAIT, "-n", "2", "--engine", engine) as process:
        space.read_until_ready(process)
        process.send_signal(number)
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert f"[0] got {int(number)}" in output
    assert f"[1] got {int(number)}" in output


def test_signals_that_are_not_handled_give_their_status(space):
    with space.start(WAIT, "-n", "2", "--engine", "collective") as process:
        space.read_until_ready(process)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 128 + 15
    assert "died by signal 15 (SIGTERM)" in output


def test_nothing_is_left_when_the_launcher_is_killed(space, engine):
    code = "child = subprocess.Popen(['sleep', '50'])\n" + WAIT
    with space.start(code, "-n", "2", "--engine", engine) as process:
        space.read_until_ready(process)
        assert sum("sleep 50" in command for command in space.living()) == 2
        process.kill()
    assert space.living_after(10.0) == []


def test_what_a_rank_left_behind_ends_with_it(space, engine):
    code = "subprocess.Popen(['sleep', '50'])"
    begin = time.monotonic()
    status, _ = space.run(code, "-n", "2", "--engine", engine)
    assert status == 0
    assert time.monotonic() - begin < 15


def test_time_limit(space, engine):
    status, output = space.run(WAIT, "-n", "2", "--engine", engine, "--timeout", "2")
    assert status == 124
    assert "time limit is over" in output


def test_nothing_is_left_when_the_reader_of_the_output_is_gone(space, engine):
    code = "print('first')\nwhile True: print('more'); time.sleep(0.01)"
    with space.start(code, "-n", "2", "--engine", engine) as process:
        assert "first" in process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=20) == 128 + 13


def run_under_mpiexec(space, shell, *command):
    """Runs the launcher with a shell script in the place of `mpiexec`."""
    fake = space.folder / "bin" / "mpiexec"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\n{shell}\n")
    fake.chmod(0o755)
    code = (
        "import sys; from npu_keras import launch_plan, launcher; "
        f"launch_plan._mpiexec = lambda: {str(fake)!r}; sys.exit(launcher.main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "-n", "2", "--engine", "mpi", *command],
        cwd=space.folder,
        env=space.env,
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_ranks_that_cannot_start_are_an_error(space):
    done = run_under_mpiexec(space, "echo no such host >&2; exit 4", "-m", "this")
    assert done.returncode == 4
    assert done.stderr == "npu_keras run: 0 of 2 ranks started. no such host\n"


def test_a_rank_that_comes_after_the_first_has_failed_may_report_too(space):
    (space.folder / "script.py").write_text(
        f"{space.header}\nif rank: sys.exit(7)\ntime.sleep(0.3)\nprint('I miss rank 1')"
    )
    shell = """shift 2
export PMI_SIZE=2
PMI_RANK=1 "$@" &
sleep 1.5
PMI_RANK=0 "$@" &
wait"""
    done = run_under_mpiexec(space, shell, "script.py")
    assert done.returncode == 7
    expected = "npu_keras run: rank 1 ended with exit status 7; ranks [0] have 15 s to end\n"
    assert (done.stderr, done.stdout) == (expected, "[0] I miss rank 1\n")
