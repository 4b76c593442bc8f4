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
from onebasin.cli.usage import in_flags, parsed
from onebasin.inference.signals import FitInterrupted
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
@pytest.mark.parametrize(
    "line",
    [
        "import onebasin",
        "from onebasin.cli.main import main; main(['--help'])",
        "from onebasin.cli.main import main; main(['barrier', '--help'])",
        "from onebasin.cli.main import main; main(['fit', 'vi', '--help'])",
        "from onebasin.cli.main import main; main(['align', 'q0.st'])",
    ],
    ids=["import", "help", "help of a command", "help of a method", "error in flags"],
)
def test_import_help_and_errors_load_nothing_heavy(line):
    program = (
        "import sys\n"
        f"try: exec({line!r})\n"
        "except SystemExit: pass\n"
        f"print([m for m in {HEAVY} if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.fast
def test_help_lists_all_commands_on_one_screen(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    told = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert f"  {name} " in told
    assert "examples:" in told
    assert len(told.splitlines()) <= 24
    assert max(map(len, told.splitlines())) <= 80


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
        (["symmetry", "mlp", "--input-shape", "0"], "--input-shape must be a positive"),
        (["symmetry", "mlp", "--depth", "-1"], "--depth is -1"),
        (["symmetry", "mlp", "--width", "0"], "--width is 0; give a positive number"),
        (["symmetry", "mlp", "--depth", "9" * 30], "is too large; integers go up to 2147483647"),
        (["symmetry", "lenet", "--depth", "2"], "--depth is a size of mlp, vit, gpt; drop it"),
        (["fit", "nosuch", "--out", "q"], "'nosuch' is none of vi, map, ensemble, hmc"),
        (["fit"], "name one of vi, map"),
        (["merge", "", "b.safetensors", "--out", "c"], "an argument is empty; give a value"),
        (["fit", "map", "--epochs", "0", "--out", "q"], "--epochs of MAP must be a whole number"),
        (["fit", "map", "--out", "."], ". is a folder; give the path of a file"),
        (["fit", "hmc", "--out", "q", "--masses", "w"], "--masses does not take 'w'; see"),
        (["fit", "map", "--out", "q", "--likelihood", "x"], "one of bernoulli, categorical, "),
        (["symmetry", "mlp", "--depth", str(2**31)], "--depth: 2147483648 is too large"),
        (["demo", "--epochs=" + "9" * 5000], "--epochs: 99999999999999999999… is too large"),
        (["fit", "vi", "--prior-variance", "nan", "--out", "2" * 30], "nan is not a number; give"),
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


def test_all_kinds_of_symmetry(capsys, tmp_path):
    path = tmp_path / "symmetry.json"
    options = ["--width", "5", "--depth", "1", "--input-shape", "3", "--kinds", "all"]
    cli.main(["symmetry", "mlp", *options, "--out", str(path)])
    shown = capsys.readouterr().out
    assert "scaled" in shown
    cli.main(["symmetry", str(path)])
    assert capsys.readouterr().out == shown


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


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("command", SUBCOMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    cli.main([*command, "--help"])
    told = capsys.readouterr().out
    assert told.startswith(f"usage: onebasin {' '.join(command)} ")
    assert f"Example: onebasin {command[0]}" in told
    assert max(map(len, told.splitlines())) <= width
    assert "%%" not in told
    if width == 100:
        assert len(told.splitlines()) <= 50, "help fits one screen"


@pytest.mark.parametrize("command", SUBCOMMANDS, ids=" ".join)
def test_the_examples_in_the_help_parse(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    cli.main([*command, "--help"])
    told = capsys.readouterr().out.replace("\\\n", "")
    examples = re.findall(r"^Example: onebasin (.*)$", told, re.MULTILINE)
    assert examples
    for example in examples:
        name, *arguments = shlex.split(example)
        options = import_module(cli.COMMANDS[name].module).COMMAND
        assert parsed(f"onebasin {name}", options, arguments) is not None


def test_help_of_an_option_says_what_to_give(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    cli.main(["fit", "vi", "--help"])
    told = capsys.readouterr().out.splitlines()
    lines = {line.split()[0]: line for line in told if line.strip()}
    assert lines["--epochs"].split()[1] == "INT"
    assert lines["--batch-size"].endswith("[500]")
    assert "Do not" in lines["--no-antithetic"], "of a switch that is on, the form to turn it off"
    assert "--resume" in lines
    assert "adam|sgd" in lines["--optimiser"]
    options = [line for line in told if line.startswith("  --")]
    assert options[-1].startswith("  --json"), "options that many commands share come last"


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


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("q.st exists; give overwrite=True to replace it", "q.st exists; give --overwrite to"),
        ("resume=True needs out= or checkpoint=", "--resume needs --out or --checkpoint"),
        ("needs a rank; fit='outputs' does", "needs a rank; --fit outputs does"),
        ("nothing to scale; set balance=False", "nothing to scale; drop --balance"),
        ("for example starts=('auto', 'shaken')", "for example --starts auto shaken"),
        ("max_sweeps is 0; allow one", "--max-sweeps is 0; allow one"),
        ("rank is 6, and seed=1.st holds 6", "--rank is 6, and seed=1.st holds 6"),
        ("the rank is 6; all runs are equal", "the rank is 6; all runs are equal"),
        ("no file runs/resume=True/max_sweeps.st", "no file runs/resume=True/max_sweeps.st"),
        ("find_symmetry(..., check=False)", "find_symmetry(..., check=False)"),
    ],
)
def test_errors_of_the_library_name_flags(message, shown):
    names = ["overwrite", "resume", "out", "checkpoint", "fit", "balance", "starts", "rank", "seed"]
    names += ["max_sweeps", "runs"]
    assert in_flags(message, names).startswith(shown)


def test_an_existing_file_is_refused_in_terms_of_flags(tmp_path, capsys):
    out = tmp_path / "q.safetensors"
    out.write_text("")
    with pytest.raises(SystemExit) as stop:
        cli.main(["fit", "vi", "--epochs", "1", "--width", "4", "--out", str(out)])
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert "--overwrite" in told
    assert "--resume" in told
    assert "=True" not in told


@pytest.mark.parametrize(
    ("stop", "code", "told"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (FitInterrupted("stopped; call with resume=True", 143), 143, "stopped; call with --resume"),
    ],
)
def test_an_interrupted_command_says_how_to_continue(stop, code, told, monkeypatch, capsys):
    def run(config):
        raise stop

    monkeypatch.setattr("onebasin.cli.fit.run", run)
    with pytest.raises(SystemExit) as left:
        cli.main(["fit", "vi", "--out", "q.st"])
    assert left.value.code == code
    assert capsys.readouterr().err == f"onebasin: {told}\n"


def test_demo_removes_most_of_the_barrier(tmp_path):
    """The demo's claim, from its own summary and files, in a real process."""
    folder = tmp_path / "demo"
    done = onebasin("demo", "--out", str(folder))
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    right = [float(p) for p in re.findall(r"([\d.]+)% and ([\d.]+)% of the test", text)[0]]
    assert min(right) > 95
    lower = float(re.findall(r"nats, (\d+)% lower", text)[0])
    assert lower >= 85
    assert {p.name for p in folder.iterdir()} == {
        "posterior-0.safetensors",
        "posterior-1.safetensors",
        "ensemble.safetensors",
        "compact.safetensors",
        "demo-barrier.svg",
        "report.html",
    }
    _, raw, aligned = map(float, re.findall(r"classifies ([\d.]+)% correctly", text))
    assert aligned > raw
    page = (folder / "report.html").read_text()
    assert "holds at smaller scale" in page
    assert "Alignment removes most of the barrier" in page
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
