"""Wrong command lines are refused in one sentence, at once, and write nothing."""

import pytest
from command_lines import VALID, attack, options_of

from onebasin.cli import fit
from onebasin.cli.main import COMMANDS


def test_wrong_command_lines_are_refused(tmp_path):
    found = attack(tmp_path, 500, seed=0)
    assert found["defects"] == []
    assert found["clean"] == found["tried"] == 500


@pytest.mark.fast
def test_every_command_is_attacked():
    assert {command[0] for command in VALID} == set(COMMANDS)
    assert {command[1] for command in VALID if command[0] == "fit"} == set(fit.COMMAND)
    kinds = {option.kind for command in VALID for option in options_of(command)}
    assert kinds == {"int", "float", "bool", "choice", "path", "text"}
