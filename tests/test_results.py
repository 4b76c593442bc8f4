"""Tables of results are generated from the records, and the committed pages are up to date."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import results_tables  # noqa: E402
from results_tables import TABLES, Records, markdown, outdated  # noqa: E402

pytestmark = pytest.mark.fast


def test_committed_tables_are_those_of_the_records():
    assert [page.name for page in outdated(ROOT)] == [], "run `make results`"


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_is_shown_on_the_page_of_results(name):
    page = (ROOT / "docs" / "results.md").read_text()
    assert page.count(f"<!-- results:{name} -->") == 1
    assert TABLES[name](Records(ROOT / "results")) in page


def test_the_readme_shows_its_table():
    assert TABLES["readme"](Records(ROOT / "results")) in (ROOT / "README.md").read_text()


BARRIERS = ["path", "barrier, nats", "accuracy at the ends", "lowest accuracy on the path"]


def path_barrier(barrier, stderr):
    return {"barrier": barrier, "stderr": stderr, "mean_network": 1.0, "lowest_accuracy": 0.25}


def reading(*seconds):
    """Medians of reading from the disk and from the cache, without checksums and with them."""
    disk, disk_with, cache, cache_with = seconds
    names = ("disk, without", "disk, with", "cache, without", "cache, with")
    shares = {"disk": disk_with / disk - 1, "cache": cache_with / cache - 1}
    return {"median": dict(zip(names, seconds, strict=True)), "share of checksums": shares}


def path_rows(first, second, *names):
    """Rows of a table of barriers, with cells that tell them apart."""
    return [[name, f"{name} {first}", f"{name} {second}", "low"] for name in names]


@pytest.fixture
def planted(tmp_path):
    """A repository of two pages and tiny records with known cells."""
    names = ("as fitted", "aligned, l2", "aligned, w2", "aligned and repaired", "mixture")
    records = {
        "symmetry_completeness": {
            "net": {
                "parameters": 20,
                "kinds": {"scaled": 2},
                "nullity": 9,
                "found": 5,
                "missing": {"vectors": 3},
                "unexplained": 1,
            },
            "machine": {},
        },
        "learned_transformers": {
            "900+50@0.1": {
                "steps": 900,
                "turns": 50,
                "rate": 0.1,
                "test": {"barrier": 0.4567, "t": 0.6},
                "train": {"barrier": 0.3},
                "hidden units": {"aligned": 0.123, "best": 0.456},
            },
            "900+50@0.1:0.2-0.8": {
                "steps": 900,
                "turns": 50,
                "rate": 0.1,
                "span": [0.2, 0.8],
                "activations": True,
                "test": {"barrier": 0.4, "t": 0.5},
                "train": {"barrier": 0.2},
                "hidden units": {"aligned": 0.3, "best": 0.456},
            },
            "machine": {},
        },
        "gpt_widths": {
            "24": {
                "ends": [1.0, 1.5],
                "weights": 2.0,
                "learned": 0.5,
                "hidden units": {"aligned": 0.2, "best": 0.456},
            },
            "machine": {},
        },
        "kinds_planted": {
            "net": {
                "exact": {"recovered": 99, "of": 100, "units right": 1.0},
                "noise": {"recovered": 7, "of": 100, "units right": 0.98765},
            },
            "machine": {},
        },
        "robustness": {
            "files": {"tried": 20_000, "defects": 0, "counts": {"unverifiable": 12}},
            "kills": {"tried": 20, "defects": 1},
        },
        "checksums": {
            "bytes": 1_500_000_000,
            "seconds": reading(8.0, 9.0, 4.0, 4.0),
            "computing seconds": reading(2.0, 2.1, 1.0, 1.04),
        },
        "reproduction/barriers": {
            "experiment": "barriers",
            "claims": [
                {"text": "a < b", "published": "zero", "ours": "0.1", "verdict": "does not hold"}
            ],
            "tables": [
                {
                    "title": "MLP 3×512 on MNIST, test data",
                    "columns": BARRIERS,
                    "rows": path_rows("nats", "right", *names),
                },
                {"title": "MLP 3×512 on MNIST, train data", "columns": BARRIERS, "rows": []},
            ],
        },
        "reproduction/cifar100": {
            "experiment": "cifar100",
            "claims": [],
            "tables": [
                {
                    "title": "A net on CIFAR-100, test data",
                    "columns": BARRIERS,
                    "rows": path_rows("n", "r", "as fitted", "w2", "w2 and repaired"),
                }
            ],
        },
        "reproduction/table1": {
            "experiment": "table1",
            "claims": [{"text": "c", "published": "p", "ours": "o", "verdict": "holds"}],
            "tables": [
                {
                    "columns": ["posterior", "agreement", "published", "TV", "published"],
                    "rows": [["HMC", "0.9", "1", "0.1", "0"], ["ours", "0.8", "–", "0.2", "–"]],
                }
            ],
        },
        "reproduction/transformers": {
            "experiment": "transformers",
            "claims": [],
            "tables": [
                {
                    "title": "ViT on digits, test data",
                    "columns": [
                        *("aligned by", "barrier, nats", "remaining", "published, nats"),
                        *("accuracy at the ends", "lowest accuracy on the path"),
                    ],
                    "rows": [["weights", "0.5", "50%", "–", "90% / 91%", "60%"]],
                }
            ],
        },
        "transformer_costs": {
            "vit-base": {
                "depth": 12,
                "width": 768,
                "parameters": 86_000_000,
                "units": 39312,
                "recovered_units": 39000,
                "trace": {"seconds": 1.25, "cpu_seconds": 0.5, "peak_gib": 0.26},
                "align": {"seconds": 92.0, "cpu_seconds": 19.0, "peak_gib": 1.75},
            },
            "targets": {"trace seconds": 10.0, "align seconds": 600.0, "peak_gib": 8.0},
        },
        "residual_objectives": {
            "sizes": {"points": 5},
            "resnet16": {
                "rows": {
                    way: {
                        "w2_distance": 42.345,
                        "barrier": barrier,
                        "barrier_stderr": 0.012,
                        "repaired_barrier": 0.5,
                        "repaired_barrier_stderr": 0.02,
                    }
                    for way, barrier in (("as fitted", 2.0), ("kl", 1.256), ("correlations", 0.7))
                }
            },
        },
        "learned_alignment": {
            "resnet16:0-1": {
                "rows": {
                    "learned": {
                        "plain": path_barrier(0.25, 0.012),
                        "repaired": path_barrier(0.5, 0.02),
                        "norms kept": path_barrier(0.12, 0.01),
                        "cpu_seconds": 101.2,
                    },
                    "as fitted": {
                        "plain": path_barrier(2.0, 0.012),
                        "repaired": path_barrier(0.5, 0.02),
                    },
                }
            }
        },
        "alignment_speed": {
            "speed": [
                {
                    "pair": "mlp2048",
                    "objective": "w2",
                    "plain": {"seconds": 335.4, "stopped_early": early},
                    "default": {"seconds": 11.18},
                }
                for early in (False, True)
            ]
        },
        "vi_convergence": {
            "mnist": {
                "default": {"negative_elbo": 0.515, "standard_error": 0.0012, "steps": 12000},
                "ten times": {"negative_elbo": 0.5, "standard_error": 0.001, "steps": 120000},
                "before": {"negative_elbo": 0.6, "standard_error": 0.002, "steps": 12000},
                "ratio": 1.03,
                "examples": 60000,
            }
        },
        "pytorch_modules": {
            "resnet50": {
                "parameters": 25557032,
                "convert_processor_seconds": 8.7,
                "symmetry_processor_seconds": 41.4,
                "align_processor_seconds": 19.9,
                "peak_gib": 1.973,
                "recovered": 36,
                "groups": 37,
                "aligned_change": 2e-7,
                "plain_seconds": 100.2,
                "plain_recovered": 35,
            },
            "vit": {
                "parameters": 86e6,
                "convert_processor_seconds": 9.0,
                "symmetry_processor_seconds": 41.4,
                "align_processor_seconds": 120.4,
                "peak_gib": 3.0,
                "recovered": 50,
                "groups": 50,
                "aligned_change": 0.0,
            },
            "merge": {
                "file_gib": 1.5,
                "limit_in_files": 2.9,
                "finished": True,
                "recovered": True,
                "seconds": 61.2,
            },
            "speed_1_core": {
                "cores_used": 1,
                "resnet20": {"forward_ratio": 0.73, "gradient_ratio": 1.684, "loop_ratio": 1.45},
                "vit": {"forward_ratio": 0.4, "gradient_ratio": 1.33, "loop_ratio": 1.05},
            },
        },
        "compact_speed": {
            f"{count} draws, rank 50, likelihood": {
                "draws": count,
                "peak_gib": 1.234,
                "cpu_seconds_per_draw": 0.1732,
            }
            for count in (1000, 10000)
        },
        "threads": {
            f"{busy} busy loops": {
                "64": {
                    "default": {"median": 0.0123, "median_ratio_to_one_core": 1.004},
                    "all cores": {"median": 0.02, "median_ratio_to_one_core": 0.5 + busy},
                },
                "machine": {},
            }
            for busy in (0, 2)
        },
        "cluster_arithmetic": {
            "sweep": {
                "10": {
                    "fits_per_hour": 360000.0,
                    "written_bytes_per_second": 7.46e8,
                    "scheduler_load": 0.25,
                    "busy_gpus": 1.0,
                }
            },
            "chain": {"10 Gbit/s": {"2": 1.698, "8": 3.56}},
        },
        "sweep_workers": {
            "fits": 16,
            "seconds_one_worker": 100.0,
            "seconds_two_workers": 50.0,
            "seconds_one_worker_on_both_cores": 75.0,
            "times_faster_with_two": 2.0,
            "times_faster_than_one_on_both_cores": 1.5,
            "kills": 20,
            "stages": 40,
            "stages_begun_again": 3,
            "tables_equal": True,
        },
        "sampler_speed": {
            "784-4-10 on 9 of mnist": {
                "methods": {
                    name: {
                        "gradients": 4000,
                        "rhat_at_the_end": 1.0421,
                        "gradients_to_rhat": to_rhat,
                        "gradients_per_effective_draw_of_slowest": each,
                        "gradients_to_ess": 400 * each,
                        "ess_was_reached": reached,
                        **further,
                    }
                    for name, each, to_rhat, reached, further in (
                        ("HMC", 50.0, None, False, {}),
                        ("MCLMC", 10.0, 1500, True, {"seconds_to_ess": 2.5}),
                    )
                }
            }
        },
    }
    records |= of_mean_field_methods()
    (tmp_path / "results" / "reproduction").mkdir(parents=True)
    for name, record in records.items():
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps(record))
    (tmp_path / "docs" / "deeper").mkdir(parents=True)
    (tmp_path / "README.md").write_text("No table here.\n")
    return tmp_path


def of_mean_field_methods():
    elbo = lambda value: {"negative_elbo": value, "standard_error": 0.01}
    names = ("VI", *(f"IVON, learning rate {rate}" for rate in ("0.1", "0.03", "0.3")))
    methods = {name: elbo(1.0 + i) for i, name in enumerate(names)}
    row = {"sampler": "MCLMC", "step_size": 0.05, "ess": 1234.5, "mean_excess_of_variances": -0.01}
    row |= {"largest_excess_of_variances": 0.2}
    return {
        "mean_field_methods": {
            "some data": {
                "examples": 1234,
                "processor_seconds_per_step": {"VI": 0.002, "IVON": 0.003},
                "budgets": {"all": {"steps": 5000, "methods": methods}},
            }
        },
        "mclmc_bias": {
            "linear regression": {
                "rows": [
                    {**row, "aim": 5e-4, "equipartition": 0.992},
                    {**row, "aim": None, "equipartition": None},
                ]
            }
        },
    }


EXPECTED = {
    "mean-field-methods": [
        [
            *("some data", "1,234", "5,000"),
            *(f"{i}.000 ± 0.010" for i in (1, 2, 3, 4)),
            "1.50",
        ],
    ],
    "mclmc-bias": [
        ["MCLMC", "0.0005", "0.0500", "-1.0 %", "-0.8 %", "+20.0 %", "1,234"],
        ["MCLMC", "–", "0.0500", "-1.0 %", "–", "+20.0 %", "1,234"],
    ],
    "readme": [
        [
            "MLP 3×512 on MNIST",
            "as fitted nats",
            "aligned, w2 nats",
            "aligned and repaired nats",
            "aligned, w2 right",
        ],
        ["A net on CIFAR-100", "as fitted n", "w2 n", "w2 and repaired n", "w2 r"],
    ],
    "barriers-mnist": [
        ["geodesic, as fitted", "as fitted nats", "as fitted right", "low"],
        ["geodesic, aligned (L2, weight matching)", "aligned, l2 nats", "aligned, l2 right", "low"],
        ["geodesic, aligned (W2)", "aligned, w2 nats", "aligned, w2 right", "low"],
        [
            "geodesic, aligned (W2) and repaired",
            "aligned and repaired nats",
            "aligned and repaired right",
            "low",
        ],
        ["mixture", "mixture nats", "mixture right", "low"],
    ],
    "compact": [["HMC", "0.9 (1)", "0.1 (0)"], ["ours", "0.8", "0.2"]],
    "residual-objectives": [
        ["as fitted", "42.3", "2.00 ± 0.01", "0.50 ± 0.02"],
        ["`kl`", "42.3", "1.26 ± 0.01", "0.50 ± 0.02"],
        [
            "`Activations(network, x, correlation=True, sites='after')`",
            "42.3",
            "0.70 ± 0.01",
            "0.50 ± 0.02",
        ],
    ],
    "learned-alignment": [
        [
            "ResNet20, width 16, fits 0 and 1",
            "nothing",
            # A path that no row has, as norms kept and repaired here, has no column.
            *("2.00 ± 0.01", "1.00", "25.0%", "0.50 ± 0.02", "–", "–"),
        ],
        [
            "ResNet20, width 16, fits 0 and 1",
            "learned on the geodesic",
            *("0.25 ± 0.01", "1.00", "25.0%", "0.50 ± 0.02", "0.12 ± 0.01", "101"),
        ],
    ],
    "alignment-speed": [
        ["MLP, width 2048", "`w2`", "335", "11.2", "30×"],
        ["MLP, width 2048", "`w2`", "> 335", "11.2", "> 30×"],
    ],
    "vi-convergence": [
        [
            *("mnist", "60,000", "12,000"),
            *("0.515 ± 0.001", "0.500 ± 0.001", "0.600 ± 0.002", "1.030"),
        ]
    ],
    "pytorch-models": [
        [
            *("ResNet50", "25.6 M", "8.70", "41.4", "19.9", "1.97", "36 of 37", "2.0e-07"),
            *("100", "35 of 37"),
        ],
        [
            *("ViT-base", "86.0 M", "9.00", "41.4", "120", "3.00", "50 of 50", "0.0e+00"),
            *("–", "–"),
        ],
    ],
    "pytorch-merge": [["1.50", "2.9 files", "61.2", "the first file"]],
    "pytorch-speed": [
        ["ResNet20", "1", "0.73", "1.68", "1.45"],
        ["small ViT", "1", "0.40", "1.33", "1.05"],
    ],
    "draws": [
        ["1,000", "1.23 GiB", "0.173 s"],
        ["10,000", "1.23 GiB", "0.173 s"],
    ],
    "threads": [["MLP 3×64", "12.3 ms", "1.00×", "0.50×", "12.3 ms", "1.00×", "2.50×"]],
    "cluster-sweep": [["10 s", "360,000", "746 MB/s", "25%", "100%"]],
    "cluster-chain": [["10 Gbit/s", "1.7×", "3.6×"]],
    "cluster-workers": [
        ["one worker, one thread", "100 s", "2.00×", "–"],
        ["one worker, the threads of both cores", "75 s", "1.50×", "–"],
        ["two workers, one thread each", "50 s", "1.00×", "–"],
        ["four workers, one killed 20 times", "–", "–", "3 of 40"],
    ],
    "sampler-speed": [
        [
            *("784-4-10 on 9 of mnist", "HMC", "4,000", "1.042", "not reached", "50", "1×"),
            *("20,000 (extrapolated)", "not measured", "–"),
        ],
        [
            *("784-4-10 on 9 of mnist", "MCLMC", "4,000", "1.042", "1,500", "10", "5×"),
            *("4,000", "2.50", "–"),
        ],
    ],
    "symmetry-completeness": [
        ["net", "20", "2 scaled", "9", "5", "vectors: 3; without a name: 1"],
    ],
    "kinds-planted": [["net", "99 of 100", "7 of 100", "98.77 %"]],
    "gpt-widths": [["24", "1.250", "2.000", "0.500", "25%", "0.46"]],
    "learned-transformers": [
        ["900 + 50", "0.1", "0.4 to 0.6", "no", "0.457", "0.6", "0.300", "0.12 of 0.46"],
        ["900 + 50", "0.1", "0.2 to 0.8", "yes", "0.400", "0.5", "0.200", "0.30 of 0.46"],
    ],
    "robustness": [
        ["damaged files", "20,000", "0", "12"],
        ["kills of commands, run again", "20", "1", "–"],
    ],
    "checksums": [
        ["1.50 GB from disk, time", "8.00 s", "9.00 s", "+12.5%"],
        ["1.50 GB from cache, time", "4.00 s", "4.00 s", "+0.0%"],
        ["1.50 GB from disk, time computing", "2.00 s", "2.10 s", "+5.0%"],
        ["1.50 GB from cache, time computing", "1.00 s", "1.04 s", "+4.0%"],
    ],
    "transformers": [["ViT on digits", "weights", "0.5", "50%", "–", "60%", "90% / 91%"]],
    "transformer-cost": [
        [
            *("trace", "12 blocks of width 768, 86,000,000 parameters", "1.25", "10 s"),
            *("0.500", "0.3 of 8"),
        ],
        ["align", "39,000 of 39,312 units recovered", "92.0", "600 s", "19.0", "1.8 of 8"],
    ],
    "verdicts": [
        ["barriers", "a &lt; b", "zero", "0.1", "does not hold"],
        ["table1", "c", "p", "o", "holds"],
    ],
}


@pytest.mark.parametrize("name", list(TABLES))
def test_a_planted_record_gives_the_planted_table(planted, name):
    head, line, *rows = TABLES[name](Records(planted / "results")).splitlines()
    assert rows == [f"| {' | '.join(cells)} |" for cells in EXPECTED[name]]
    assert line == "|" + "---|" * len(EXPECTED[name][0])
    assert head.count("|") == line.count("|")


def test_only_what_stands_between_markers_is_replaced(planted):
    page = planted / "docs" / "deeper" / "page.md"
    page.write_text(
        "before\n<!-- results:compact -->\nout of date\n<!-- /results:compact -->\nbetween\n"
        "<!-- results:verdicts -->\n<!-- /results:verdicts -->\nafter\n"
    )
    found = outdated(planted)
    assert list(found) == [page]
    text = found[page]
    assert "out of date" not in text
    assert text.startswith("before\n<!-- results:compact -->\n\n| posterior |")
    assert "| ours | 0.8 | 0.2 |\n\n<!-- /results:compact -->\nbetween\n" in text
    assert text.endswith("| holds |\n\n<!-- /results:verdicts -->\nafter\n")
    page.write_text(text)
    assert outdated(planted) == {}
    record = planted / "results" / "reproduction" / "table1.json"
    record.write_text(record.read_text().replace("0.8", "0.7"))
    assert "| ours | 0.7 | 0.2 |" in outdated(planted)[page]


def test_mistakes_on_a_page_are_named(planted):
    page = planted / "docs" / "page.md"
    for text, message in (
        ("<!-- results:nothing -->\n<!-- /results:nothing -->", "page.md: there is no table 'noth"),
        ("<!-- results:compact -->\nno end", "1 tables are opened .compact. but 0 are closed"),
        ("<!-- results:compact -->\n<!-- /results:readme -->", "1 tables are opened"),
    ):
        page.write_text(text)
        with pytest.raises(ValueError, match=message):
            outdated(planted)
    (planted / "results" / "alignment_speed.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no record .*alignment_speed"):
        TABLES["alignment-speed"](Records(planted / "results"))


def test_cells_cannot_break_a_table():
    assert markdown(["a"], [["x | y"]]).splitlines()[-1] == "| x \\| y |"


def test_check_writes_nothing(planted, monkeypatch, capsys):
    page = planted / "docs" / "page.md"
    page.write_text("<!-- results:compact -->\n<!-- /results:compact -->\n")
    before = page.read_text()
    monkeypatch.setattr(results_tables, "ROOT", planted)
    for arguments, code in ((["--check"], 1), ([], 0), (["--check"], 0)):
        monkeypatch.setattr(sys, "argv", ["results_tables.py", *arguments])
        with pytest.raises(SystemExit) as stop:
            results_tables.main()
        assert stop.value.code == code
        assert (page.read_text() == before) == (code == 1)
    assert capsys.readouterr().out == "docs/page.md: out of date\ndocs/page.md: written\n"
