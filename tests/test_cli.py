"""The command line as its users meet it: real processes, exit codes, one-sentence errors."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module

import jax.numpy as jnp
import numpy as np
import pytest

from onebasin.cli import main as cli
from onebasin.cli.usage import parsed
from onebasin.networks import MLP, to_config
from onebasin.posterior import MeanField, save

HEAVY = ("jax", "flax", "optax", "blackjax", "matplotlib", "scipy", "sklearn", "numpy")


def onebasin(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "onebasin", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
    )


@pytest.mark.fast
def test_help_is_quick_and_imports_nothing_heavy():
    program = (
        "import sys\n"
        "from onebasin.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
    for name in cli.COMMANDS:
        assert f"  {name} " in done.stdout
    assert "examples:" in done.stdout
    assert len(done.stdout.splitlines()) <= 24, "help fits a screen"


@pytest.mark.fast
def test_version_and_no_arguments(capsys):
    for arguments, code in (["--version"], 0), ([], 2):
        with pytest.raises(SystemExit) as stop:
            cli.main(arguments)
        assert stop.value.code == code
    assert capsys.readouterr().out.startswith("onebasin 0.")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fitt"], "there is no command 'fitt'"),
        (["symmetry", "nowhere.safetensors"], "neither a file nor one of"),
        (["symmetry", "pyproject.toml"], "foreign or cut short"),
        (["data", "--root", "/nonexistent"], "/nonexistent"),
    ],
)
def test_errors_are_one_sentence_and_exit_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("onebasin: ")
    assert message in told
    assert told.count("\n") == 1
    assert "Traceback" not in told


def test_debug_shows_the_traceback():
    done = onebasin("symmetry", "nowhere.safetensors", "--debug")
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_an_unknown_flag_is_an_error_before_any_work(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["symmetry", "mlp", "--wdith", "3"])
    assert stop.value.code == 2
    assert "--wdith" in capsys.readouterr().err


def test_symmetry_of_a_built_in_network(capsys):
    cli.main(["symmetry", "mlp", "--width", "5", "--depth", "2", "--input-shape", "3", "--json"])
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [(g["size"], len(g["places"])) for g in groups] == [(5, 3), (5, 3)]


def test_symmetry_of_a_saved_posterior(tmp_path, capsys):
    network = MLP(widths=(4,), num_classes=3)
    shapes = {
        "Dense_0": {"kernel": (6, 4), "bias": (4,)},
        "Dense_1": {"kernel": (4, 3), "bias": (3,)},
    }
    params = {
        layer: {k: jnp.asarray(np.ones(s, np.float32)) for k, s in leaves.items()}
        for layer, leaves in shapes.items()
    }
    q = MeanField(params, params)
    path = save(tmp_path / "q.safetensors", q, network=to_config(network, (6,)))
    cli.main(["symmetry", str(path)])
    assert "Dense_0" in capsys.readouterr().out
    unnamed = save(tmp_path / "unnamed.safetensors", q)
    with pytest.raises(SystemExit) as stop:
        cli.main(["symmetry", str(unnamed)])
    assert stop.value.code == 2
    assert "does not name its network" in capsys.readouterr().err


def test_data_says_what_is_where(tmp_path, capsys):
    cli.main(["data", "--root", str(tmp_path)])
    told = capsys.readouterr().out
    assert "digits" in told
    assert "embedded" in told
    for name in ("mnist", "fashion-mnist", "cifar10", "cifar100"):
        assert name in told


SUBCOMMANDS = [[name] for name in cli.COMMANDS] + [
    ["fit", method] for method in ("vi", "map", "ensemble", "hmc", "nuts")
]


@pytest.mark.parametrize("command", SUBCOMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example_on_one_screen(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    cli.main([*command, "--help"])
    told = capsys.readouterr().out
    assert told.startswith(f"usage: onebasin {' '.join(command)} ")
    assert f"Example: onebasin {command[0]}" in told
    assert len(told.splitlines()) <= 50
    assert max(map(len, told.splitlines())) <= 100


@pytest.mark.parametrize("command", SUBCOMMANDS, ids=" ".join)
def test_the_examples_of_the_help_are_understood(command, capsys):
    cli.main([*command, "--help"])
    examples = re.findall(r"^Example: onebasin (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert examples
    for example in examples:
        name, *arguments = shlex.split(example)
        options = import_module(cli.COMMANDS[name].module).COMMAND
        assert parsed(f"onebasin {name}", options, arguments) is not None


def test_help_of_an_option_says_what_to_give(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    cli.main(["fit", "vi", "--help"])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["--epochs"].split()[1] == "INT"
    assert lines["--epochs"].endswith("[100]")
    assert "--no-antithetic" in lines, "of a switch that is on, the form that turns it off"
    assert "--resume" in lines
    assert "adam|sgd" in lines["--optimiser"]


@pytest.mark.parametrize(
    ("arguments", "culprit", "remedy"),
    [
        (["compact"], "--out", "onebasin compact --help"),
        (["compact", "q.st", "--rnak", "3", "--out", "o"], "--rnak", "did you mean --rank?"),
        (["fit", "vi", "--epochs", "two", "--out", "o"], "'two'", "onebasin fit vi --help"),
        (["fit", "vv"], "vv", "vi, map, ensemble, hmc, nuts"),
        (["fit"], "vi, map, ensemble, hmc, nuts", "onebasin fit --help"),
        (["barrier", "q.st"], "t = 1", "onebasin barrier --help"),
        (["barrier", "q.st", "r.st", "--data", "cifar"], "'cifar'", "'cifar10'"),
    ],
)
def test_a_wrong_option_is_one_sentence(arguments, culprit, remedy, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("onebasin: ")
    assert told.err.count("\n") == 1
    assert culprit in told.err
    assert remedy in told.err


def test_demo_removes_most_of_the_barrier(tmp_path):
    """The demo's claim, from its own closing words and files, in a real process."""
    folder = tmp_path / "demo"
    done = onebasin("demo", "--out", str(folder))
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    right = [float(p) for p in re.findall(r"([\d.]+)% and ([\d.]+)% of the test", text)[0]]
    assert min(right) > 95
    less = float(re.findall(r"nats, (\d+)% less", text)[0])
    assert less >= 85
    assert {p.name for p in folder.iterdir()} == {
        "posterior-0.safetensors",
        "posterior-1.safetensors",
        "ensemble.safetensors",
        "compact.safetensors",
        "demo-barrier.svg",
        "report.html",
    }
    raw, ordered = (
        float(p) for p in re.findall(r"right on ([\d.]+)%, as .* on ([\d.]+)%", text)[0]
    )
    assert ordered > raw
    page = (folder / "report.html").read_text()
    assert "holds at smaller scale" in page
    assert "<svg" in page
    assert str(folder / "report.html") in text
    again = onebasin("demo", "--out", str(folder))
    assert again.returncode == 2
    assert "earlier run" in again.stderr


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        ({}, cli.DEVICES),
        ({"JAX_NUM_CPU_DEVICES": "2"}, 2),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, 3),
    ],
    ids=["offered", "chosen", "chosen by a flag"],
)
def test_fits_are_offered_devices_unless_the_user_chose(given, devices):
    program = (
        "import sys\n"
        "from onebasin.cli.main import main\n"
        "sys.argv = ['onebasin', 'data']\n"
        "main()\n"
        "import jax\n"
        "print(len(jax.devices()))\n"
    )
    chosen = ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")
    environment = {k: v for k, v in os.environ.items() if k not in chosen} | given
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.stdout.split()[-1] == str(devices), done.stderr
