"""`onebasin fit`, as it is typed."""

import json

import numpy as np
import pytest

from onebasin.cli.main import main
from onebasin.inference.draws import read_statistics
from onebasin.posterior import load, read_header


def test_fit_vi_from_the_command_line(tmp_path, capsys):
    out = tmp_path / "q0.safetensors"
    flags = "fit vi --data digits --network mlp --width 16 --depth 2 --epochs 2 --seed 3 --json"
    flags += " --batch-size 100 --progress silent --history " + str(tmp_path / "h.jsonl")
    main([*flags.split(), "--out", str(out)])
    said = capsys.readouterr()
    summary = json.loads(said.out)
    (note,) = summary["notes"]
    assert note.endswith("give more epochs, smaller batches or a larger --std-learning-rate")
    assert said.err == f"note: {note}\n", "in the words of the shell, and never silent"
    assert summary["method"] == "VI"
    assert summary["out"] == str(out)
    header = read_header(out)
    assert header.network is not None
    assert header.network["widths"] == [16, 16]
    assert header.provenance["fit"]["method"]["epochs"] == 2
    posterior = load(out)
    assert posterior.mean["Dense_0"]["kernel"].shape == (64, 16)
    with pytest.raises(SystemExit) as stopped:
        main([*flags.split(), "--out", str(out)])
    assert stopped.value.code == 2
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "flags", "draws"),
    [("ensemble", "--members 2 --epochs 1", 2), ("hmc", "--draws 2 --chains 1 --warmup 1", 2)],
)
def test_other_methods_from_the_command_line(tmp_path, capsys, method, flags, draws):
    out = tmp_path / "q.safetensors"
    words = f"fit {method} --data digits --limit 100 --width 8 --depth 1 {flags} --progress silent"
    if method == "hmc":
        words += " --leapfrog-steps 2 --masses Dense_1/kernel 2 Dense_1/bias 3"
    main([*words.split(), "--out", str(out)])
    said = capsys.readouterr().out
    assert str(out) in said
    posterior = load(out)
    assert posterior.num_draws == draws
    assert np.isfinite(posterior.draws["Dense_0"]["kernel"]).all()
    if method == "hmc":
        made = read_header(out).provenance["fit"]["method"]
        assert made["masses"] == {"Dense_1/kernel": 2, "Dense_1/bias": 3}


DEFAULTS = {
    "vi": "",
    "ivon": "",
    "swag": "",
    "map": "",
    "ensemble": "",
    "hmc": "--leapfrog-steps 2",
    "nuts": "--max-doublings 2",
    "mclmc": "--thin 1",
    "adjusted-mclmc": "--leapfrog-steps 2",
}


@pytest.mark.parametrize("method", DEFAULTS)
def test_every_method_runs_to_its_file_at_its_default_size(tmp_path, capsys, method):
    """All options that set the size of a file have their defaults; only its network is small."""
    out = tmp_path / "q.safetensors"
    words = f"fit {method} --limit 50 --width 4 --depth 1 {DEFAULTS[method]} --progress silent"
    main([*words.split(), "--out", str(out)])
    assert [path.name for path in tmp_path.iterdir()] == ["q.safetensors"]
    posterior, header = load(out), read_header(out)
    assert max(np.size(value) for value in header.provenance["stats"].values()) <= 64
    draws = dict.fromkeys(("hmc", "nuts", "mclmc", "adjusted-mclmc"), 4000)
    draws |= {"map": 1, "ensemble": 5}
    if method in draws:
        assert posterior.num_draws == draws[method]
    names = {"acceptance", "divergent", "log_density"}
    expected = {
        "hmc": names | {"energy"},
        "nuts": names | {"energy", "leapfrog_steps"},
        "mclmc": {"energy_error", "divergent", "log_density", "equipartition"},
        "adjusted-mclmc": names,
    }.get(method, set())
    found = read_statistics(out)
    assert found.keys() == expected
    for name, values in found.items():
        assert values.shape == (4, 1000)
        assert np.isfinite(values).all()
        assert name == "divergent" or values[:, -1].all()  # filled to the end
    main([*words.split(), "--out", str(out), "--resume"])  # read from the file
    assert str(out) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "culprit"),
    [
        ("fit vi --epochs 0 --out q.st", "epochs"),
        ("fit vi --no-such-flag 1 --out q.st", "--no-such-flag"),
        ("fit vi --data nothing --out q.st", "nothing"),
        ("fit vi --epochs 1", "--out"),
        ("fit vi --width 0 --out q.st", "--width is 0"),
        ("fit map --limit 0 --out q.st", "limit"),
        ("fit hmc --masses Dense_1/kernel --out q.st", "--masses"),
        ("fit hmc --masses Dense_9/kernel 2 --out q.st", "Dense_9/kernel"),
    ],
)
def test_wrong_flags_end_with_code_two(tmp_path, monkeypatch, capsys, flags, culprit):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(flags.split())
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.err.startswith("onebasin: ")
    assert culprit in said.err
    assert said.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
