"""The `onebasin` command: parses and delegates."""

import os
import sys
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from importlib import import_module

USAGE_ERROR = 2
INTERRUPTED = 130
DEVICES = 4
"""As so many the processor is offered to JAX: chains and members are spread over them."""


@dataclass(frozen=True)
class Command:
    """A subcommand: what it is for, and the module whose `COMMAND` and `run` do it.

    `COMMAND` is a dataclass of options, or a dictionary of them by name (sub-subcommands).
    """

    module: str
    summary: str


COMMANDS = {
    "demo": Command("onebasin.cli.demo", "see it work on the embedded digits"),
    "data": Command("onebasin.cli.data", "what data sets are found where"),
    "fit": Command("onebasin.cli.fit", "fit a posterior: vi, map, ensemble, hmc, nuts"),
    "symmetry": Command("onebasin.cli.symmetry", "the permutation symmetries of a network"),
    "align": Command("onebasin.cli.align", "move posteriors into one basin"),
    "barrier": Command("onebasin.cli.barrier", "the loss along a path between two"),
    "compare": Command("onebasin.cli.compare", "two predictives side by side"),
    "landscape": Command("onebasin.cli.landscape", "the loss on a plane of weights"),
    "compact": Command("onebasin.cli.compact", "boil posteriors down to one Gaussian"),
    "prune": Command("onebasin.cli.prune", "keep the surest weights"),
    "diagnose": Command("onebasin.cli.diagnose", "chains before and after alignment"),
    "reproduce": Command("onebasin.cli.reproduce", "run the published experiments"),
    "report": Command("onebasin.cli.report", "one HTML page of what was run"),
}

HELP = """\
usage: onebasin COMMAND [OPTIONS]

Move posteriors of Bayesian neural networks into one basin.

commands (`onebasin COMMAND --help` for a command's own options):
{commands}

options: -h, --help; --version; --debug shows the traceback of an error

examples:
  onebasin demo
  onebasin align q1.safetensors --to q0.safetensors --out moved.safetensors
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; errors are one sentence on standard error and exit code 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    if not arguments or arguments[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:<12} {c.summary}" for name, c in COMMANDS.items())
        sys.stdout.write(HELP.format(commands=listed))
        sys.exit(0 if arguments else USAGE_ERROR)
    if arguments[0] == "--version":
        from onebasin import __version__

        sys.stdout.write(f"onebasin {__version__}\n")
        sys.exit(0)
    name, *rest = arguments
    if name not in COMMANDS:
        _fail(f"there is no command '{name}'; the commands are {', '.join(COMMANDS)}")
    if argv is None:  # a process of its own
        _offer_devices(os.environ)
    try:
        _run(name, rest)
    except KeyboardInterrupt:
        sys.stderr.write("onebasin: interrupted\n")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has left; nobody is there to tell
        sys.exit(0)
    except (ValueError, TypeError, OSError, ImportError, MemoryError) as error:
        if debug:
            raise
        _fail(_one_line(error), getattr(error, "exit_code", USAGE_ERROR))


def _offer_devices(environment: MutableMapping[str, str]) -> None:
    """Let JAX run several fits beside each other on one processor, unless the user has chosen.

    It reads the variable when it is imported. One computation still uses all cores;
    several are quicker each on its own device than one after another (`benchmarks/hmc_devices.py`).
    """
    if "xla_force_host_platform_device_count" not in environment.get("XLA_FLAGS", ""):
        environment.setdefault("JAX_NUM_CPU_DEVICES", str(DEVICES))


def _run(name: str, arguments: list[str]) -> None:
    from onebasin.cli.usage import help_text, parsed

    module = import_module(COMMANDS[name].module)
    prog, command = f"onebasin {name}", module.COMMAND
    if isinstance(command, dict) and len(arguments) > 1 and arguments[0] in command:
        first, *arguments = arguments
        prog, command = f"{prog} {first}", command[first]
    if "-h" in arguments or "--help" in arguments:
        sys.stdout.write(help_text(prog, command))
        return
    module.run(parsed(prog, command, arguments))


def _one_line(error: BaseException) -> str:
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
        return f"{error.filename} is a file where a folder is needed; give another path"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _fail(message: str, code: int = USAGE_ERROR) -> None:
    sys.stderr.write(f"onebasin: {message}\n")
    sys.exit(code)
