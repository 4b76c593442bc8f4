"""Wrong command lines: each must end with one sentence, exit code 2 and no file written.

A command line starts from a valid one, made of the options of the command's dataclass, and gets one
mistake of a kind that is always a mistake.
"""

import contextlib
import dataclasses
import io
import json
import os
import random
import traceback
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from time_limits import time_limit

from onebasin.cli.main import COMMANDS, main

SLOW = 20  # seconds of computing that no refusal may take
WORDS = ("abc", "", "1e", "0x10", "--", "1,2", "½", "one", "[]", "1 2")
HUGE = ("1" + 30 * "0", str(2**63), "9" * 400)
NOT_A_NUMBER = ("nan", "-nan", "NaN")
SILENT = ("--progress", "silent")
SMALL = ("--limit", "50", "--width", "4", "--depth", "1", *SILENT)
EPOCHS = ("vi", "map", "ensemble", "ivon", "swag")  # methods that train in epochs
CHAINS = ("hmc", "nuts", "mclmc", "adjusted-mclmc")  # and those that draw after a warm-up
# A valid command line of every command; {name} is a file of `make_files`.
VALID = {
    ("demo",): ["--out", "demo"],
    ("data",): [],
    **{("fit", m): ["--out", "new.safetensors", "--epochs", "1", *SMALL] for m in EPOCHS},
    **{
        ("fit", m): ["--out", "new.safetensors", "--draws", "2", "--warmup", "0", *SMALL]
        for m in CHAINS
    },
    ("fit", "laplace"): ["--out", "new.safetensors", "--mode-epochs", "1", *SMALL],
    ("fit", "sgld"): ["--out", "new.safetensors", "--draws", "2", *SMALL],
    ("fit", "sghmc"): ["--out", "new.safetensors", "--draws", "2", *SMALL],
    ("symmetry",): ["mlp"],
    ("align",): ["q1.safetensors", "--to", "q0.safetensors", "--out", "new.safetensors"],
    ("barrier",): ["q0.safetensors", "q1.safetensors"],
    ("compare",): ["q0.safetensors", "q1.safetensors"],
    ("landscape",): ["q0.safetensors", "q1.safetensors"],
    ("compact",): ["draws.safetensors", "--out", "new.safetensors"],
    ("merge",): [
        *("plain0.safetensors", "plain1.safetensors"),
        *("--symmetry", "symmetry.json", "--out", "new.safetensors"),
    ],
    ("prune",): ["q0.safetensors", "--out", "new.safetensors"],
    ("embed",): ["q0.safetensors", "--into", "wide.safetensors", "--out", "new.safetensors"],
    ("diagnose",): ["draws.safetensors"],
    ("reproduce",): ["kl-vs-w2", "--preset", "toy", "--out", "run"],
    ("sweep",): ["grid.yaml", "--out", "run"],
    ("verify",): ["q0.safetensors"],
    ("report",): ["record.json", "--out", "new.html"],
}
# Files that are not what any command that reads one file expects.
FOREIGN = ("missing.safetensors", "folder", "text.safetensors", "empty.safetensors", "other.json")
# Options whose negative values make sense.
SIGNED = {"seed", "draw"}
# Options that name a file or folder to read, and those that name one to write.
READ = {"to", "into", "adopt", "symmetry"}
WRITTEN = {"out", "checkpoint", "history", "figure", "export_arviz", "output"}
# Whole command lines that contradict themselves.
CONTRADICTIONS = [
    "align q1.safetensors --out new.safetensors",
    "align q0.safetensors q1.safetensors --out new --search",
    "align q0.safetensors q1.safetensors --out new --starts random",
    "align q1.safetensors --to q0.safetensors --out new.safetensors --objective correlations",
    "align q1.safetensors --to q0.safetensors --out new.safetensors --data digits",
    "align q0.safetensors q1.safetensors --out q0.safetensors",
    "align q0.safetensors folder/q0.safetensors --out new",
    "align q1.safetensors --to wide.safetensors --out new.safetensors",
    "align draws.safetensors --to q0.safetensors --out new.safetensors",
    "align q1.safetensors --to q0.safetensors --out q0.safetensors",
    "barrier q0.safetensors wide.safetensors",
    "barrier q0.safetensors q1.safetensors --path mixture --repair",
    "barrier q0.safetensors q1.safetensors --figure new.txt",
    "barrier q0.safetensors q1.safetensors --symmetry sparse.safetensors",
    "prune q0.safetensors --out new.safetensors --symmetry text.safetensors",
    "barrier q0.safetensors",
    "barrier q0.safetensors q1.safetensors q1.safetensors",
    "compare q0.safetensors sparse.safetensors",
    "compare q0.safetensors q1.safetensors --data digits --root folder --ood mnist",
    "landscape q0.safetensors wide.safetensors",
    "landscape q0.safetensors q1.safetensors --value rmse",
    "compact q0.safetensors wide.safetensors --out new.safetensors",
    "compact draws.safetensors --out draws.safetensors",
    "diagnose q0.safetensors",
    "diagnose draws.safetensors --figure new.xyz",
    "fit",
    "fit sgd --out new.safetensors",
    "fit vi",
    "fit vi --out q0.safetensors --epochs 1",
    "fit vi --out folder",
    "fit vi --out nowhere/new.safetensors",
    "fit vi --out new.safetensors --checkpoint new.safetensors",
    "fit vi --out new.safetensors --history new.safetensors",
    "fit vi --out new.safetensors --root folder --data mnist",
    "prune q0.safetensors --out new.safetensors --curve",
    "prune q0.safetensors --out new.safetensors --figure new.png",
    "prune q0.safetensors --out q0.safetensors",
    "prune q0.safetensors --out new.safetensors --keep 0",
    "prune q0.safetensors --out new.safetensors --keep 1.5",
    "reproduce",
    "reproduce kl-vs-w2 width --parts plane --preset toy --out run",
    "reproduce kl-vs-w2 --parts nothing --preset toy --out run",
    "reproduce kl-vs-w2 --preset toy --out text.safetensors",
    "report",
    "report folder --out new.html",
    "report record.json --out folder",
    "report record.json --out text.safetensors",
    "report q0.safetensors --out new.html",
    "symmetry mlp --input-shape 0",
    "symmetry sparse.safetensors",
    "symmetry folder",
    "verify",
    "demo --out text.safetensors",
    "data --root text.safetensors",
    "data table.csv",
    "data table.csv --target nothing",
    "data table.csv --target words --likelihood gaussian",
    "data table.csv --target a --drop b words",
    "data table.csv --target whole",
    "data table.csv --target b --test-share 2",
    "data array.npy",
    "data broken.csv --target b",
    "data empty.npz",
    "fit vi --out new.safetensors --data table.csv",
    "fit vi --out new.safetensors --data table.csv --target b --drop words --limit 90",
    "fit vi --out new.safetensors --data nothing.npz",
    "fit vi --out new.safetensors --data digits --target b",
    "fit vi --out new.safetensors --data digits --likelihood bernoulli",
    "fit vi --out new.safetensors --noise-std 1",
    "fit vi --out new.safetensors --network net.py",
    "fit vi --out new.safetensors --network net.py:nothing",
    "fit vi --out new.safetensors --network net.py:raises",
    "fit vi --out new.safetensors --network net.py:needs",
    "fit vi --out new.safetensors --network net.py:returns",
    "fit vi --out new.safetensors --network broken.py:make",
    "fit vi --out new.safetensors --network no.module:make",
    "fit vi --out new.safetensors --network mlpp",
    "symmetry net.py:make",
    "symmetry other.json",
    "symmetry mlp --out nowhere/new.json",
    "prune bare.safetensors --out new.safetensors --data digits",
    "align bare.safetensors --to bare.safetensors --out new.safetensors",
    "align q1.safetensors --to q0.safetensors --out new.safetensors --symmetry other.json",
    "align q1.safetensors --to q0.safetensors --out new.safetensors --network net.py:make",
    "barrier q0.safetensors q1.safetensors --data table.csv --target b --drop words",
    "compare bare.safetensors bare.safetensors --ood mnist",
    "compare bare.safetensors bare.safetensors --align w2",
    "compare q0.safetensors q1.safetensors --likelihood gaussian",
    "data --device abacus",
    "data --threads 0",
    "fit vi --out new.safetensors --threads",
    "fit vi --out new.safetensors --threads many",
    "data --root missing",
]

NETWORKS = """
def raises(): raise RuntimeError("no")
def needs(width): ...
def returns(): return 3
def make():
    from flax import linen as nn
    return nn.Dense(7)
"""


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a command, or one of its positional arguments."""

    name: str
    kind: str  # "int", "float", "bool", "choice", "path" or "text"
    positional: bool
    many: bool

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def options_of(command: tuple[str, ...]) -> list[Option]:
    """The options of a command, those of nested dataclasses included."""
    options: Any = import_module(COMMANDS[command[0]].module).COMMAND
    return list(_fields(options[command[1]] if len(command) > 1 else options))


def _fields(options: Any) -> Iterator[Option]:
    for name, hint in get_type_hints(options, include_extras=True).items():
        notes: tuple[Any, ...] = ()
        if get_origin(hint) is Annotated:
            hint, *rest = get_args(hint)
            notes = tuple(rest)
        if dataclasses.is_dataclass(hint):
            yield from _fields(hint)
            continue
        if get_origin(hint) in (types.UnionType, Union):
            parts = [part for part in get_args(hint) if part is not type(None)]
            hint = parts[0]
            if len(parts) > 1:  # choices of several kinds
                hint = Literal[tuple(choice for part in parts for choice in get_args(part))]
        many = get_origin(hint) is tuple
        hint = get_args(hint)[0] if many else hint
        positional = any("POSITIONAL" in repr(note).upper() for note in notes)
        yield Option(name, _kind(hint), positional, many)


def _kind(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "choice"
    known = {int: "int", float: "float", bool: "bool", Path: "path"}
    return known.get(hint, "text")


def make_files(folder: Path) -> None:
    """Files of every kind that commands read or refuse."""
    import numpy as np
    from safetensors.numpy import save_file

    import onebasin as ob
    from onebasin.networks.described import DescribedNetwork
    from onebasin.posterior.sparse import save_sparse
    from onebasin.symmetry import find_symmetry
    from onebasin.trees import leaves_by_path

    for name, width, seed in (("q0", 4, 0), ("q1", 4, 1), ("wide", 5, 2)):
        _fitted(folder / f"{name}.safetensors", "vi", width, seed)
    _fitted(folder / "draws.safetensors", "ensemble", 4, 0)
    header = ob.read_header(folder / "q0.safetensors")
    pruned = ob.prune(*ob.load(folder / "q0.safetensors").moments(), keep=0.5)
    save_sparse(folder / "sparse.safetensors", pruned, network=header.network)
    network = DescribedNetwork.from_config(header.network, "q0")
    find_symmetry(network, network.shapes, network.x).save(folder / "symmetry.json")
    for number in range(2):
        mean = ob.load(folder / f"q{number}.safetensors").mean
        arrays = {name: np.asarray(leaf) for name, leaf in leaves_by_path(mean).items()}
        save_file(arrays, folder / f"plain{number}.safetensors")
    (folder / "text.safetensors").write_text("not a posterior\n")
    (folder / "empty.safetensors").touch()
    (folder / "other.json").write_text("{}")
    (folder / "grid.yaml").write_text("fit: {method: vi, data: digits, epochs: 1}\n")
    (folder / "record.json").write_text(json.dumps(_record()))
    (folder / "folder").mkdir()
    (folder / "folder" / "q0.safetensors").write_bytes((folder / "q0.safetensors").read_bytes())
    np.save(folder / "array.npy", np.zeros(3))
    ob.save(folder / "bare.safetensors", ob.load(folder / "q0.safetensors"))
    (folder / "empty.npz").touch()
    (folder / "broken.csv").write_text("a,b\n1\n")
    rows = "".join(f"{i},{i / 2},word{i},{i}\n" for i in range(20))
    (folder / "table.csv").write_text(f"a,b,words,whole\n{rows}")
    (folder / "net.py").write_text(NETWORKS)
    (folder / "broken.py").write_text("def make(:\n")


def _fitted(path: Path, method: str, width: int, seed: int) -> None:
    options = ["--epochs", "1", "--limit", "50", "--width", str(width), "--depth", "1"]
    with contextlib.redirect_stdout(io.StringIO()):
        main(["fit", method, *options, "--seed", str(seed), *SILENT, "--out", str(path)])


def _record() -> dict[str, Any]:
    texts = dict.fromkeys(("title", "question", "source", "preset"), "x")
    empty = {name: [] for name in ("claims", "tables", "figures", "machines")}
    return {
        "record": 1,
        "experiment": "width",
        "config": {},
        "stages": {},
        "versions": {},
        **texts,
        **empty,
    }


def wrong_lines(count: int, seed: int) -> Iterator[list[str]]:
    """Command lines with one mistake each."""
    chance = random.Random(seed)
    yield from (line.split() for line in CONTRADICTIONS[:count])
    mistakes = [
        misspelt_option,
        wrong_word,
        negative_number,
        huge_number,
        not_a_number,
        unknown_choice,
        foreign_file,
        unwritable_file,
        missing_value,
        missing_argument,
        extra_argument,
        unknown_command,
    ]
    made = len(CONTRADICTIONS)
    while made < count:
        command = chance.choice(list(VALID))
        line = chance.choice(mistakes)(chance, command)
        if line is not None:
            made += 1
            yield line


Line = list[str] | None
Chosen = tuple[str, ...]


def _set(command: Chosen, option: Option, *values: str) -> list[str]:
    """The valid command line with an option set to other values."""
    line = list(VALID[command])
    if option.positional:
        own = next((i for i, word in enumerate(line) if word.startswith("--")), len(line))
        return [*command, *values, *line[own:]]
    if option.flag in line:
        at = line.index(option.flag)
        line[at : at + 2] = []
    return [*command, *line, option.flag, *values]


def _some(chance: random.Random, command: Chosen, *kinds: str) -> Option | None:
    found = [option for option in options_of(command) if option.kind in kinds]
    return chance.choice(found) if found else None


def misspelt_option(chance: random.Random, command: Chosen) -> Line:
    option = chance.choice(options_of(command))
    name = list(option.name.replace("_", "-"))
    at = chance.randrange(len(name))
    name[at] = chance.choice([c for c in "qzxj" if c != name[at]])
    known = {o.flag for o in options_of(command)}
    flag = "--" + "".join(name)
    return None if flag in known else [*command, *VALID[command], flag, "1"]


def wrong_word(chance: random.Random, command: Chosen) -> Line:
    option = _some(chance, command, "int", "float")
    word = chance.choice(WORDS)
    if option is None or (option.many and word == "--"):  # no values, which is the default
        return None
    return _set(command, option, word)


def negative_number(chance: random.Random, command: Chosen) -> Line:
    option = _some(chance, command, "int", "float")
    if option is None or option.name in SIGNED:
        return None
    number = chance.choice(("-1", "-7", "-1000000", f"-{10**25}"))
    return _set(command, option, number if option.kind == "int" else f"{number}.5")


def huge_number(chance: random.Random, command: Chosen) -> Line:
    option = _some(chance, command, "int")
    return option and _set(command, option, chance.choice(HUGE))


def not_a_number(chance: random.Random, command: Chosen) -> Line:
    option = _some(chance, command, "float")
    return option and _set(command, option, chance.choice(NOT_A_NUMBER))


def unknown_choice(chance: random.Random, command: Chosen) -> Line:
    option = _some(chance, command, "choice")
    return option and _set(command, option, chance.choice(("nothing", "", "W2", "42", "vi,map")))


def foreign_file(chance: random.Random, command: Chosen) -> Line:
    found = [
        o for o in options_of(command) if o.kind == "path" and (o.positional or o.name in READ)
    ]
    if not found or command in (("verify",), ("report",)):
        return None
    names = [*FOREIGN, "sparse.safetensors", "record.json", "array.npy", ""]
    line, at = [*command, *VALID[command]], chance.choice(found)
    name = chance.choice(names)
    if not at.positional:
        return _set(command, at, name)
    files = [i for i, word in enumerate(line) if word.endswith(".safetensors")]
    files = [i for i in files if not line[i - 1].startswith("--")]
    if not files:
        return None
    line[chance.choice(files)] = name
    return line


def unwritable_file(chance: random.Random, command: Chosen) -> Line:
    found = [o for o in options_of(command) if o.kind == "path" and o.name in WRITTEN]
    if not found or command in (("demo",), ("reproduce",), ("sweep",)):
        return None
    option = chance.choice(found)
    return _set(command, option, chance.choice(("folder", "", "text.safetensors/new.png", "/")))


def missing_value(chance: random.Random, command: Chosen) -> Line:
    option = _some(chance, command, "int", "float", "choice", "path")
    if option is None or option.positional or option.many:
        return None
    return _set(command, option)


def missing_argument(chance: random.Random, command: Chosen) -> Line:
    line = list(VALID[command])
    needed = [i for i, word in enumerate(line) if word in ("--out", "--to")]
    if "--out" in line and command[0] in ("demo", "report", "reproduce", "sweep"):
        return None
    if not needed:
        return None
    at = chance.choice(needed)
    del line[at : at + 2]
    return [*command, *line]


def extra_argument(chance: random.Random, command: Chosen) -> Line:
    if any(option.positional and option.many for option in options_of(command)):
        return None
    return [*command, *VALID[command], chance.choice(("extra", "q0.safetensors", "3"))]


def unknown_command(chance: random.Random, command: Chosen) -> Line:
    name = list(command[-1])
    chance.shuffle(name)
    word = "".join(name) + "x"
    return [*command[:-1], word, *VALID[command]]


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """The size and time of change of every file under a folder."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place) / name
            known = path.lstat()
            found[str(path)] = (known.st_size if path.is_file() else 0, known.st_mtime_ns)
    return found


class TooSlow(BaseException):
    """A command line was not refused in time."""


def defect_of(line: list[str], folder: Path) -> str | None:
    """What is wrong with the answer to a wrong command line."""
    before = state_of(folder)
    out, err = io.StringIO(), io.StringIO()
    code: object = "no exit"
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with time_limit(SLOW, TooSlow()):
                main(line)
        except SystemExit as stop:
            code = stop.code
        except TooSlow:
            return f"not refused within {SLOW} s"
        except BaseException:
            return f"a traceback ending in {traceback.format_exc().splitlines()[-1]}"
    text = err.getvalue()
    if code != 2:
        return f"exit code {code}"
    if not text.startswith("onebasin: ") or text.count("\n") != 1:
        return f"not one sentence: {text!r:.200}"
    if "Traceback" in text or len(text) > 1000:
        return f"too long or a traceback: {text!r:.200}"
    changed = {name for name, _ in before.items() ^ state_of(folder).items()}
    return f"it wrote {sorted(changed)}" if changed else None


def attack(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Try so many wrong command lines; a defect is the command line with what is wrong."""
    defects = []
    make_files(folder)
    with contextlib.chdir(folder):
        for line in wrong_lines(count, seed):
            found = defect_of(line, folder)
            if found:
                defects.append(f"onebasin {' '.join(map(repr, line))}: {found}")
    return {"tried": count, "clean": count - len(defects), "defects": defects}
