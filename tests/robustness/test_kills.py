"""A seeded sample of the attack by kills; `make attack` runs the long version."""

import json
import shutil

from killer import attack, differences

# One of every kind of writer; the long version kills all.
NAMES = ("fit vi", "fit hmc", "align", "compact", "reproduce", "report", "merge folders")


def test_killed_commands_leave_what_undisturbed_ones_leave(tmp_path):
    found = attack(tmp_path, 12, seed=1, names=NAMES)
    assert found["defects"] == []
    assert found["tried"] >= 12
    assert found["clean"] == found["tried"]
    assert found["operations"] > 100


def test_folders_that_differ_are_told_apart(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    (one / "a.json").write_text(json.dumps({"loss": 1.5, "seconds": 2.0}))
    (one / "page.html").write_text("page")
    shutil.copytree(one, other)
    (other / "a.json").write_text(json.dumps({"loss": 1.5, "seconds": 3.0}))
    assert differences(one, other) == []
    (other / "a.json").write_text(json.dumps({"loss": 1.6, "seconds": 2.0}))
    (other / "page.html").write_text("pag")
    (one / ".a.json.lock").write_text("")
    (other / "more").mkdir()
    assert differences(one, other) == [
        "leaves .a.json.lock",
        "lacks more",
        "another a.json",
        "another page.html",
    ]
