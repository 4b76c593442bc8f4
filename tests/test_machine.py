"""The flags of every command: --device, --x64 and --threads."""

import json
import os
import subprocess
import sys

import jax
import pytest

from onebasin.cli import main as cli
from onebasin.cli.machine import split_arguments
from onebasin.posterior import load


@pytest.mark.fast
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "abacus"], "there is no device 'abacus'; give cpu, gpu, tpu"),
        (["--device"], "there is no device ''"),
        (["--threads", "0"], "--threads is '0'; give a number from 1"),
        (["--threads=two"], "--threads is 'two'"),
        (["--threads", "9" * 50], "--threads is '99999999999999999999'; give"),
        (["--coordinator", "here"], "--coordinator is 'here'; give the first process as HOST:PORT"),
        (["--process", "-1"], "--process is '-1'; give a number from 0"),
        (["--distributed"], "several processes can share a fit, but not 'symmetry'"),
    ],
)
def test_wrong_ones_are_one_sentence(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["symmetry", "mlp", *arguments])
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.fast
def test_a_process_that_uses_jax_already_cannot_join_others(capsys):
    with pytest.raises(SystemExit):
        cli.main(["fit", "map", "--out", "q.st", "--coordinator", "127.0.0.1:1"])
    assert "call jax.distributed.initialize before" in capsys.readouterr().err


@pytest.mark.fast
def test_what_belongs_to_the_command_stays():
    machine, rest = split_arguments(["fit", "--device=cpu", "vi", "--out=a=b", "--threads", "3"])
    assert (machine.device, machine.threads, machine.x64) == ("cpu", 3, False)
    assert rest == ["fit", "vi", "--out=a=b"]


def test_double_precision(tmp_path):
    out = tmp_path / "q.st"
    small = [
        "--limit",
        "20",
        "--width",
        "2",
        "--depth",
        "1",
        "--epochs",
        "1",
        "--progress",
        "silent",
    ]
    cli.main(["fit", "map", *small, "--x64", "--device", "cpu", "--out", str(out)])
    assert not jax.config.read("jax_enable_x64"), "only while the command ran"
    with jax.enable_x64(True):
        assert {leaf.dtype.name for leaf in jax.tree.leaves(load(out).draws)} == {"float64"}


def test_threads_and_device_in_a_process():
    program = (
        "import json, os, sys\n"
        "from onebasin.cli import main as cli\n"
        "sys.argv = ['onebasin', 'symmetry', 'mlp', '--width', '2', '--input-shape', '2',\n"
        "            '--threads', '1', '--device', 'cpu', '--json']\n"
        "cli.main()\n"
        "cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1\n"
        "print(json.dumps([cores, os.environ['OMP_NUM_THREADS'], os.environ['JAX_PLATFORMS']]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [1, "1", "cpu"]
