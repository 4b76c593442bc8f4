"""The shell on PyTorch modules: a function that returns one is a network like any other."""

import copy
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import onebasin as ob
from onebasin.cli.main import main
from onebasin.networks.own import OwnNetworkError, Place

MAKERS = """
import torch
from torch import nn

def make_network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(),
                         nn.Linear(12, 10))

def tokens():
    module = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    return module, torch.ones(2, 4, dtype=torch.long)

def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(63, 10))

def complex():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10, dtype=torch.complex64))
"""


def digits_module(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(),
                        nn.Linear(12, 10))  # fmt: skip
    net(torch.rand(50, 8, 8))
    return net.eval()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MAKERS)
    return tmp_path


def test_keys_give_weights_also_in_compiled_and_mapped_functions(folder: Path) -> None:
    made = Place.of("./net.py:make_network").make((64,))
    keys = jax.random.split(jax.random.key(3), 3)
    mapped = jax.vmap(made.init)(keys)
    for i, key in enumerate(keys):
        alone, compiled = made.init(key), jax.jit(made.init)(key)
        for name, leaf in alone.items():
            assert np.array_equal(leaf, mapped[name][i])
            assert np.array_equal(leaf, compiled[name])
    assert not np.array_equal(mapped["1.weight"][0], mapped["1.weight"][1])
    before = torch.get_rng_state()
    made.init(keys[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_module_with_inputs_needs_no_shape(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["symmetry", "./net.py:tokens", "--json"])
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [group["size"] for group in groups] == [6, 5]
    with pytest.raises(OwnNetworkError, match="needs the shape of one input"):
        Place.of("./net.py:make_network").make(None)
    with pytest.raises(
        OwnNetworkError, match=r"shape \(1, 64\) with RuntimeError: mat1 and mat2 shapes"
    ):
        Place.of("./net.py:narrow").make((64,))
    with pytest.raises(ValueError, match=r"'1\.weight' is complex; hold its real"):
        Place.of("./net.py:complex").make((64,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_file_is_aligned_by_a_module(dtype: torch.dtype, folder: Path) -> None:
    net = digits_module()
    network = ob.networks.from_torch(net, torch.rand(2, 8, 8))
    symmetry = ob.find_symmetry(network)
    p = symmetry.random(key=jax.random.key(0))
    params, state = symmetry.act(p, network.params), symmetry.act_on_state(p, network.state)
    moved = network.load_into(copy.deepcopy(net), params, state).to(dtype)
    save_file(moved.state_dict(), "b.safetensors", metadata={"format": "pt", "made": "here"})
    save_file(net.to(dtype).state_dict(), "a.safetensors")
    main(["align", "b.safetensors", "--to", "a.safetensors", "--network", "./net.py:make_network",
          "--input-shape", "64", "--out", "back.safetensors"])  # fmt: skip
    back = load_file("back.safetensors")
    for name, tensor in net.state_dict().items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor), name
    with safe_open("back.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "made": "here"}


def test_a_folder_is_aligned_and_written_in_another_format(folder: Path) -> None:
    (folder / "runs").mkdir()
    for seed in (1, 2):
        save_file(digits_module(seed).state_dict(), folder / "runs" / f"{seed}.safetensors")
    command = ["align", "runs", "--network", "./net.py:make_network", "--input-shape", "64"]
    main([*command, "--format", "pt", "--out", "moved"])
    for seed in (1, 2):
        net = digits_module(seed)
        moved = copy.deepcopy(net)
        moved.load_state_dict(torch.load(f"moved/{seed}.pt", weights_only=True))
        x = torch.rand(5, 8, 8)
        torch.testing.assert_close(moved(x), net(x), rtol=1e-5, atol=1e-5)


def test_files_are_merged_reset_and_scored(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2, 3):
        save_file(digits_module(seed).state_dict(), f"{seed}.safetensors")
    files = [f"{seed}.safetensors" for seed in (1, 2, 3)]
    main(["merge", *files, "--network", "./net.py:make_network", "--data", "digits", "--reset",
          "--out", "merged.pt", "--format", "pt", "--json"])  # fmt: skip
    scores = json.loads(capsys.readouterr().out)["scores"]
    data = ob.load_dataset("digits")
    merged = digits_module()
    merged.load_state_dict(torch.load("merged.pt", weights_only=True))
    # What PyTorch says of the file is what the command said of the result.
    y = torch.from_numpy(np.asarray(data.test.y)).long()
    found = nn.functional.cross_entropy(merged(torch.from_numpy(np.asarray(data.test.x))), y)
    assert scores["corrected"]["nll"] == pytest.approx(found.item(), rel=1e-4)
    first = merged[1](merged[0](torch.from_numpy(np.asarray(data.train.x))))
    torch.testing.assert_close(merged[2].running_mean, first.mean(0), rtol=1e-3, atol=1e-4)
    assert scores["ensemble"]["nll"] < max(one["nll"] for one in scores["members"])


def test_the_whole_way_through_the_shell(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", "vi", "--network", "./net.py:make_network", "--data", "digits", "--epochs", "2",
          "--runs", "2", "--out", "q.safetensors"])  # fmt: skip
    first, second = ob.load("q-0.safetensors"), ob.load("q-1.safetensors")
    assert not np.allclose(first.mean["1.weight"], second.mean["1.weight"], atol=0.05)
    main(["barrier", "q-0.safetensors", "q-1.safetensors", "--align", "w2", "--points", "3",
          "--num-samples", "2", "--json"])  # fmt: skip
    assert "barrier" in capsys.readouterr().out
