"""Files of PyTorch: only tensors are loaded from a pickle, and files go in and out unchanged."""

import copy
import os
import pickle
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import onebasin as ob
from onebasin.checkpoints import Entries, read_checkpoint, samples_from_state_dicts
from onebasin.cli.main import main
from onebasin.pytorch_tensors import to_array
from onebasin.tensor_files import TensorFileError


class Malicious:
    """A pickle of it makes a folder when it is loaded."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self):
        return os.mkdir, (str(self.victim),)


@pytest.mark.parametrize("how", ["torch.save", "pickle", "inside a state_dict"])
def test_a_malicious_file_is_refused_and_runs_nothing(how: str, tmp_path: Path) -> None:
    path, victim = tmp_path / "weights.pt", tmp_path / "victim"
    attack = Malicious(victim)
    if how == "pickle":
        path.write_bytes(pickle.dumps(attack))
    else:
        torch.save(attack if how == "torch.save" else {"w": torch.ones(2), "x": attack}, path)
    with pytest.raises(TensorFileError, match="could run code when it is loaded"):
        read_checkpoint(path)
    assert not victim.exists()
    if how == "pickle":  # the attack itself works
        pickle.loads(path.read_bytes())
    else:
        torch.load(path, weights_only=False)
    assert victim.exists()


def module(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    net(torch.randn(8, 3))
    return net.eval()


def of_module(net: nn.Module) -> tuple[ob.Network, ob.Symmetry, torch.Tensor]:
    x = torch.randn(5, 3)
    network = ob.networks.from_torch(net, x)
    return network, ob.find_symmetry(network, x=x.numpy(), check=False), x


@pytest.mark.parametrize("nested", [None, "state_dict", "model"])
def test_a_state_dict_is_found_in_a_training_checkpoint(nested: str | None, tmp_path: Path) -> None:
    own = module().state_dict()
    torch.save({nested: own, "epoch": 3} if nested else own, tmp_path / "net.pt")
    found = read_checkpoint(tmp_path / "net.pt").tensors
    assert found.keys() == own.keys()
    assert all(np.array_equal(found[name], to_array(tensor)) for name, tensor in own.items())


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {}, {1: torch.ones(1)}])
def test_a_file_without_a_state_dict_is_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "net.pt")
    with pytest.raises(TensorFileError, match=r"no (plain )?state_dict"):
        read_checkpoint(tmp_path / "net.pt")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    torch.save(module().state_dict(), tmp_path / "net.pt")
    (tmp_path / "net.pt").write_bytes((tmp_path / "net.pt").read_bytes()[:200])
    with pytest.raises(TensorFileError, match=r"not a whole PyTorch file|more than tensors"):
        read_checkpoint(tmp_path / "net.pt")


UNREADABLE = {
    "repeats its numbers": torch.zeros(1).expand(30_000, 30_000),
    "holds complex64 numbers": torch.zeros(3, dtype=torch.complex64).conj(),
    "is sparse": torch.eye(3).to_sparse(),
    "has no numbers": torch.zeros(3, device="meta"),
}


@pytest.mark.parametrize("said", UNREADABLE)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_tensor_that_is_no_array_of_numbers_is_refused(
    said: str, zipped: bool, tmp_path: Path
) -> None:
    path = tmp_path / "net.pt"
    tensors = {"odd": UNREADABLE[said]}
    torch.save(tensors, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(TensorFileError, match=f"net.pt: 'odd' {said}"):
        read_checkpoint(path)


def test_an_archive_that_says_it_has_further_disks_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(3)}, tmp_path / "net.pt")
    content = (tmp_path / "net.pt").read_bytes()
    at = content.rindex(b"PK\x06\x07") + 4  # the disk of the end of the directory, in ZIP64
    (tmp_path / "net.pt").write_bytes(content[:at] + b"\x01" + content[at + 1 :])
    with pytest.raises(TensorFileError, match=r"net\.pt is not a whole PyTorch file"):
        read_checkpoint(tmp_path / "net.pt")


def test_a_compressed_archive_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(100_000)}, tmp_path / "net.pt")
    packed = zipfile.ZipFile(tmp_path / "small.pt", "w", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(tmp_path / "net.pt") as whole, packed as small:
        for member in whole.infolist():
            small.writestr(member.filename, whole.read(member))
    with pytest.raises(TensorFileError, match=r"small\.pt is not a whole .* is compressed"):
        read_checkpoint(tmp_path / "small.pt")


@pytest.mark.parametrize(
    "kinds", [(".pt", ".pt"), (".pt", ".safetensors"), (".safetensors", ".pt")]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_both_forms_are_written(kinds: tuple[str, str], dtype: torch.dtype, tmp_path: Path) -> None:
    own = module().to(dtype).state_dict()
    source, target = (tmp_path / f"{name}{kind}" for name, kind in zip("ab", kinds, strict=True))
    save_file(own, source) if kinds[0] == ".safetensors" else torch.save(own, source)
    checkpoint = read_checkpoint(source)
    checkpoint.write(target, lambda name: checkpoint.tensors[name])
    load = load_file if kinds[1] == ".safetensors" else torch.load
    found = load(target)
    assert found.keys() == own.keys()
    for name, tensor in own.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_the_command_moves_a_file_that_the_module_then_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way of a user: trained module, file, command, module."""
    monkeypatch.chdir(tmp_path)
    net = module()
    network, symmetry, x = of_module(net)
    symmetry.save("net.json")
    p = symmetry.random(key=jax.random.key(0))
    torch.save(net.state_dict(), "b.pt")
    moved = network.load_into(
        copy.deepcopy(net),
        symmetry.act(p, network.params),
        symmetry.act_on_state(p, network.state),
    )
    save_file(moved.state_dict(), "a.safetensors")
    main(["align", "a.safetensors", "--to", "b.pt", "--symmetry", "net.json", "--out",
          "moved.safetensors"])  # fmt: skip
    back = copy.deepcopy(moved)
    back.load_state_dict(load_file("moved.safetensors"))
    assert not torch.equal(moved[0].weight, net[0].weight)
    for name, tensor in net.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
    assert torch.equal(back(x), net(x))


def test_tied_weights_of_a_file_move_together(tmp_path: Path) -> None:
    """torch.save keeps both names; the second is recognised by its numbers."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(7, 4), nn.Tanh(), nn.Linear(4, 7, bias=False)).eval()
    net[2].weight = net[0].weight
    network = ob.networks.from_torch(net, torch.tensor([[1, 2], [3, 4]]))
    symmetry = ob.find_symmetry(network, x=np.array([[1, 2], [3, 4]]), check=False)
    torch.save(net.state_dict(), tmp_path / "tied.pt")
    entries = Entries(read_checkpoint(tmp_path / "tied.pt"), symmetry)
    assert entries.tied == {"2.weight": "0.weight"}


def test_state_dicts_of_pytorch_are_samples_and_back() -> None:
    network, _, _ = of_module(module())
    dicts = [module(seed).state_dict() for seed in (1, 2)]
    samples = samples_from_state_dicts(dicts, network)
    assert samples.state is not None
    for i, own in enumerate(dicts):
        state = {name: leaf[i] for name, leaf in samples.state.items()}
        back = network.with_params(samples.draw(i), state)
        counted = "1.num_batches_tracked"  # the module's own, not fitted
        assert all(torch.equal(back[n], t) for n, t in own.items() if n != counted)
