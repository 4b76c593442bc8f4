"""Write the tables of results into README.md and docs/ from the records in results/.

    python benchmarks/results_tables.py          # or: make results
    python benchmarks/results_tables.py --check  # write nothing; fail if a table is out of date

A table stands between two comments that name it, and everything between them is replaced:

    <!-- results:NAME -->
    <!-- /results:NAME -->
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import scaling_tables
from record_tables import Records, markdown, named_rows

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"<!-- results:([\w-]+) -->\n.*?<!-- /results:\1 -->", re.DOTALL)
OPENING = re.compile(r"<!-- results:([\w-]+) -->")
TEST_DATA = ", test data"
DEFAULT_SPAN = (0.4, 0.6)  # of `PathLoss`, in records that name none
OBJECTIVES = {
    "activations": "`Activations(network, x)`",
    "correlations": "`Activations(network, x, correlation=True, sites='after')`",
    "w2 from correlations": "`w2`, started from the result of correlations",
}
WAYS = {
    "w2": "`w2`",
    "after": "correlations after the nonlinearity",
    "all sites": "correlations at all sites",
    "learned": "learned on the geodesic",
    "learned, norms kept": "learned on the norm-keeping path",
}
ATTACKS = {
    "kills": "kills of commands, run again",
    "networks": "random networks, their groups checked",
    "kinds": "random networks, all kinds of their symmetry checked",
    "files": "damaged files",
    "command lines": "wrong command lines",
    "odd numbers": "alignments of weights of any magnitude",
    "large files": "kinds of large files, their memory",
}
FAMILIES = {"mlp": "MLP", "resnet": "ResNet20"}


def readme(records: Records) -> str:
    """Barriers of all networks: as fitted, aligned, repaired."""
    rows = []
    for name, w2, repaired in (
        ("barriers", "aligned, w2", "aligned and repaired"),
        ("cifar100", "w2", "w2 and repaired"),
    ):
        for table in records[f"reproduction/{name}"]["tables"]:
            if table["title"].endswith(TEST_DATA):
                paths = named_rows(table)
                barriers = [paths[p]["barrier, nats"] for p in ("as fitted", w2, repaired)]
                network = table["title"].removesuffix(TEST_DATA)
                rows.append([network, *barriers, paths[w2]["accuracy at the ends"]])
    heads = ["network and data", "barrier as fitted, nats", "aligned (W2)", "aligned and repaired"]
    return markdown([*heads, "test accuracy of the two fits"], rows)


def barriers_mnist(records: Records) -> str:
    """Five paths between two posteriors on MNIST."""
    title = f"MLP 3×512 on MNIST{TEST_DATA}"
    (table,) = (t for t in records["reproduction/barriers"]["tables"] if t["title"] == title)
    paths = named_rows(table)
    columns = {
        "barrier, nats": "barrier of the test loss, nats",
        "accuracy at the ends": "accuracy at the ends",
        "lowest accuracy on the path": "lowest accuracy on the path",
    }
    shown = {
        "as fitted": "geodesic, as fitted",
        "aligned, l2": "geodesic, aligned (L2, weight matching)",
        "aligned, w2": "geodesic, aligned (W2)",
        "aligned and repaired": "geodesic, aligned (W2) and repaired",
        "mixture": "mixture",
    }
    rows = [[label, *(paths[path][c] for c in columns)] for path, label in shown.items()]
    return markdown(["path", *columns.values()], rows)


def compact(records: Records) -> str:
    """Table 1 of Xiao et al.: ours, with published values in parentheses."""
    (table,) = records["reproduction/table1"]["tables"]
    measures = table["columns"][1::2]
    rows = [
        [row[0], *(_beside(*pair) for pair in zip(row[1::2], row[2::2], strict=True))]
        for row in table["rows"]
    ]
    return markdown(["posterior", *(f"{m} (published)" for m in measures)], rows)


def _beside(ours: str, published: str) -> str:
    return ours if published == "–" else f"{ours} ({published})"


def residual_objectives(records: Records) -> str:
    """Distance and barriers between residual networks, by objective."""
    found = records["residual_objectives"]
    pairs = {name: pair["rows"] for name, pair in found.items() if "rows" in pair}
    heads = ["objective"]
    for name in pairs:
        heads += [f"{_network(name)}: W2 distance", "barrier, nats", "repaired, nats"]
    rows = []
    for way in next(iter(pairs.values())):
        cells = [OBJECTIVES.get(way, way if way == "as fitted" else f"`{way}`")]
        for own in (pair[way] for pair in pairs.values()):
            cells.append(f"{own['w2_distance']:.1f}")
            cells += [
                f"{own[name]:.2f} ± {own[f'{name}_stderr']:.2f}"
                for name in ("barrier", "repaired_barrier")
            ]
        rows.append(cells)
    return markdown(heads, rows)


def learned_alignment(records: Records) -> str:
    """Barriers by the way of alignment and the path, pair by pair."""
    rows = []
    for name, pair in records["learned_alignment"].items():
        network, _, runs = name.partition(":")
        which = f"{_network(network)}, fits {runs.replace('-', ' and ')}" if runs else network
        for way, label in {"as fitted": "nothing", **WAYS}.items():
            row = pair["rows"].get(way)
            if row is None:
                continue
            paths = [row.get(path) for path in ("plain", "repaired", "norms kept", "both")]
            cells = ["–" if p is None else f"{p['barrier']:.2f} ± {p['stderr']:.2f}" for p in paths]
            seconds = f"{row['cpu_seconds']:.0f}" if "cpu_seconds" in row else "–"
            noise = f"{row['plain']['mean_network']:.2f}"
            lowest = f"{row['plain']['lowest_accuracy']:.1%}"
            rows.append([which, label, cells[0], noise, lowest, *cells[1:], seconds])
    heads = ["pair", "aligned by", "geodesic", "of the mean networks", "lowest accuracy"]
    heads += ["repaired", "norms kept", "norms kept and repaired", "processor seconds"]
    measured = [i for i in range(len(heads)) if any(row[i] != "–" for row in rows)]
    return markdown([heads[i] for i in measured], [[row[i] for i in measured] for row in rows])


def alignment_speed(records: Records) -> str:
    """Seconds of one alignment: the published algorithm written plainly, and the default."""
    rows = []
    for row in records["alignment_speed"]["speed"]:
        plain, ours = row["plain"]["seconds"], row["default"]["seconds"]
        least = "> " if row["plain"]["stopped_early"] else ""
        rows.append(
            [
                _network(row["pair"]),
                f"`{row['objective']}`",
                f"{least}{_seconds(plain)}",
                _seconds(ours),
                f"{least}{plain / ours:.0f}×",
            ]
        )
    return markdown(["network", "objective", "plain, s", "OneBasin, s", "times faster"], rows)


def sampler_speed(records: Records) -> str:
    """Full-batch gradients until chains agree, and per effective draw of the slowest prediction."""
    rows = []
    count = lambda value: "not reached" if value is None else f"{value:,.0f}"
    for setting, found in records["sampler_speed"].items():
        slowest = "gradients_per_effective_draw_of_slowest"
        base = found["methods"]["HMC"][slowest]
        for name, row in found["methods"].items():
            extrapolated = "" if row["ess_was_reached"] else " (extrapolated)"
            distance = row.get("total_variation_to_hmc")
            rows.append(
                [
                    setting,
                    name,
                    count(row["gradients"]),
                    f"{row['rhat_at_the_end']:.3f}",
                    count(row["gradients_to_rhat"]),
                    f"{row[slowest]:,.0f}",
                    f"{base / row[slowest]:.2g}×",
                    count(row["gradients_to_ess"]) + extrapolated,
                    _seconds(row["seconds_to_ess"]) if "seconds_to_ess" in row else "not measured",
                    "–" if distance is None else f"{distance:.3f}",
                ]
            )
    heads = ["network and data", "sampler", "gradients", "R-hat", "to R-hat ≤ 1.05"]
    heads += ["per effective draw", "fewer than HMC", "to 400 effective draws", "the same, s"]
    return markdown([*heads, "TV to HMC"], rows)


def vi_convergence(records: Records) -> str:
    """−ELBO per example of a default fit, of one ten times as long, and of fixed settings."""
    rows = []
    for data, found in sorted(records["vi_convergence"].items()):
        elbo = {
            name: f"{found[name]['negative_elbo']:.3f} ± {found[name]['standard_error']:.3f}"
            for name in ("default", "ten times", "before")
        }
        steps = f"{found['default']['steps']:,}"
        examples = f"{found['examples']:,}"
        rows.append([data, examples, steps, *elbo.values(), f"{found['ratio']:.3f}"])
    heads = ["data", "examples", "steps", "default", "ten times as long", "fixed settings"]
    return markdown([*heads, "default / ten times"], rows)


def transformers(records: Records) -> str:
    """Barriers between transformers by the way of alignment, beside the published ones."""
    rows = []
    for table in records["reproduction/transformers"]["tables"]:
        network = table["title"].removesuffix(TEST_DATA)
        for row in named_rows(table).values():
            ours, published = row["barrier, nats"], row["published, nats"]
            left = [row["remaining"], published, row["lowest accuracy on the path"]]
            rows.append([network, row["aligned by"], ours, *left, row["accuracy at the ends"]])
    heads = ["network and data", "aligned by", "barrier, nats", "remaining", "published, nats"]
    return markdown([*heads, "lowest accuracy on the path", "at the ends"], rows)


def learned_transformers(records: Records) -> str:
    """Barriers between two GPTs by how long the whole group is learned."""
    found = [row for name, row in records["learned_transformers"].items() if name != "machine"]
    rows = []
    order = lambda row: (row["steps"] + row["turns"], "activations" in row, row["rate"])
    for row in sorted(found, key=lambda row: (*order(row), row.get("span", ()))):
        alike = row["hidden units"]
        low, high = row.get("span", DEFAULT_SPAN)
        rows.append(
            [
                f"{row['steps']:,} + {row['turns']:,}",
                f"{row['rate']:g}" if row["steps"] else "–",
                f"{low:g} to {high:g}" if row["steps"] else "–",
                ("yes" if "activations" in row else "no") if row["steps"] else "–",
                f"{row['test']['barrier']:.3f}",
                f"{row['test']['t']:.1f}",
                f"{row['train']['barrier']:.3f}",
                f"{alike['aligned']:.2f} of {alike['best']:.2f}",
            ]
        )
    heads = ["steps", "rate", "span", "units compared", "barrier, test data", "highest at t"]
    return markdown([*heads, "barrier, training data", "correlation of hidden units"], rows)


def gpt_widths(records: Records) -> str:
    """What is left between two GPTs of each width."""
    found = {name: row for name, row in records["gpt_widths"].items() if name != "machine"}
    rows = []
    for name, row in sorted(found.items(), key=lambda item: int(item[0])):
        alike, ends = row["hidden units"], sum(row["ends"]) / 2
        barriers = [f"{row[way]:.3f}" for way in ("weights", "learned")]
        share = f"{row['learned'] / row['weights']:.0%}"
        rows.append([name, f"{ends:.3f}", *barriers, share, f"{alike['best']:.2f}"])
    heads = ["width", "loss of the ends", "weights matched", "learned", "share left"]
    return markdown([*heads, "correlation of best matches"], rows)


def transformer_cost(records: Records) -> str:
    """Tracing a network of the size of ViT-Base, and aligning a shuffled copy."""
    record = records["transformer_costs"]
    own, targets = record["vit-base"], record["targets"]
    shape = f"{own['depth']} blocks of width {own['width']}, {own['parameters']:,} parameters"
    recovered = f"{own['recovered_units']:,} of {own['units']:,} units recovered"
    target = lambda name: f"{targets[name]:g} s"
    rows = [
        ["trace", shape, _seconds(own["trace"]["seconds"]), target("trace seconds")],
        ["align", recovered, _seconds(own["align"]["seconds"]), target("align seconds")],
    ]
    for row, part in zip(rows, ("trace", "align"), strict=True):
        memory = f"{own[part]['peak_gib']:.1f} of {targets['peak_gib']:g}"
        row += [_seconds(own[part]["cpu_seconds"]), memory]
    heads = ["step", "of", "seconds", "target", "processor seconds", "memory, GiB"]
    return markdown(heads, rows)


def mean_field_methods(records: Records) -> str:
    """−ELBO per example of VI and IVON at equal numbers of gradients."""
    rows = []
    for data, found in sorted(records["mean_field_methods"].items()):
        seconds = found["processor_seconds_per_step"]
        for budget in found["budgets"].values():
            cells = [
                f"{row['negative_elbo']:.3f} ± {row['standard_error']:.3f}"
                for row in budget["methods"].values()
            ]
            rate = f"{seconds['IVON'] / seconds['VI']:.2f}"
            rows.append([data, f"{found['examples']:,}", f"{budget['steps']:,}", *cells, rate])
    heads = ["data", "examples", "gradients", "VI", "IVON", "IVON, rate 0.03", "IVON, rate 0.3"]
    return markdown([*heads, "seconds of IVON / VI"], rows)


def mclmc_bias(records: Records) -> str:
    """How wrong the variances are, and what the fit reports."""
    rows = []
    share = lambda value: f"{100 * value:+.1f} %"
    for found in records["mclmc_bias"].values():
        for row in found["rows"]:
            reported = row["equipartition"]
            rows.append(
                [
                    row["sampler"],
                    "–" if row["aim"] is None else f"{row['aim']:g}",
                    f"{row['step_size']:.4f}",
                    share(row["mean_excess_of_variances"]),
                    "–" if reported is None else share(reported - 1),
                    share(row["largest_excess_of_variances"]),
                    f"{row['ess']:,.0f}",
                ]
            )
    heads = ["sampler", "energy error", "step size", "variances, mean", "reported by the fit"]
    return markdown([*heads, "largest", "effective draws"], rows)


PYTORCH_MODELS = {
    "resnet50": "ResNet50", "vit": "ViT-base", "gpt2": "GPT-2 small", "bert": "BERT-base",
}  # fmt: skip


def pytorch_models(records: Records) -> str:
    """Conversion, symmetry and alignment of large PyTorch modules with planted permutations."""
    rows = []
    for name, label in PYTORCH_MODELS.items():
        row = records["pytorch_modules"].get(name)
        if row is not None:
            parts = ("convert", "symmetry", "align")
            rows.append(
                [
                    label,
                    f"{row['parameters'] / 1e6:.1f} M",
                    *(_seconds(row[f"{part}_processor_seconds"]) for part in parts),
                    f"{row['peak_gib']:.2f}",
                    f"{row['recovered']} of {row['groups']}",
                    f"{row['aligned_change']:.1e}",
                    *_plain_matching(row),
                ]
            )
    heads = ["model", "parameters", "conversion, s", "symmetry and check, s", "alignment, s"]
    heads += ["peak memory, GiB", "groups recovered", "change of outputs"]
    heads += ["plain matching, s on the wall", "groups recovered by it"]
    return markdown(heads, rows)


def _plain_matching(row: dict[str, Any]) -> list[str]:
    if "plain_seconds" not in row:
        return ["–", "–"]
    return [_seconds(row["plain_seconds"]), f"{row['plain_recovered']} of {row['groups']}"]


def pytorch_merge(records: Records) -> str:
    """Files that are merged while less than three times the size of one may be allocated."""
    row = records["pytorch_modules"].get("merge")
    rows = []
    if row is not None:
        outcome = "the first file" if row["recovered"] else "another file"
        rows.append(
            [
                f"{row['file_gib']:.2f}",
                f"{row['limit_in_files']:.1f} files",
                _seconds(row["seconds"]),
                outcome if row["finished"] else "stopped",
            ]
        )
    heads = ["each of two files, GiB", "may be allocated", "seconds", "their average is"]
    return markdown(heads, rows)


def pytorch_speed(records: Records) -> str:
    """Times of converted modules relative to PyTorch's own."""
    rows = []
    for name, found in records["pytorch_modules"].items():
        if name.startswith("speed"):
            for model, label in (("resnet20", "ResNet20"), ("vit", "small ViT")):
                ratios = (found[model][f"{what}_ratio"] for what in ("forward", "gradient", "loop"))
                rows.append([label, found["cores_used"], *(f"{ratio:.2f}" for ratio in ratios)])
    heads = ["model", "cores", "forward", "gradient", "gradient in the loop of a fit"]
    return markdown(heads, sorted(rows, key=lambda row: row[:2]))


def _seconds(value: float) -> str:
    """To three digits.

    >>> _seconds(0.01), _seconds(25.4352), _seconds(1294.56)
    ('0.0100', '25.4', '1,295')
    """
    return f"{value:#.3g}" if value < 99.95 else f"{value:,.0f}"


def _network(pair: str) -> str:
    """The name of a pair of networks in words.

    >>> _network("resnet16")
    'ResNet20, width 16'
    """
    (parts,) = re.findall(r"^([a-z]+)(\d+)$", pair)
    return f"{FAMILIES[parts[0]]}, width {parts[1]}"


def verdicts(records: Records) -> str:
    """Every claim of every experiment."""
    fields = ("text", "published", "ours", "verdict")
    rows = [
        [record["experiment"], *(claim[field] for field in fields)]
        for record in records.experiments()
        for claim in record["claims"]
    ]
    return markdown(["experiment", "claim", "published", "ours", "verdict"], rows)


def symmetry_completeness(records: Records) -> str:
    """The dimension of the continuous symmetry found, beside the nullity of the Jacobian."""
    rows = []
    for name, row in records["symmetry_completeness"].items():
        if name == "machine":
            continue
        kinds = ", ".join(f"{count} {kind}" for kind, count in row["kinds"].items())
        missing = "; ".join(f"{name}: {count}" for name, count in row["missing"].items())
        left = row["unexplained"]
        rows.append(
            [
                name,
                row["parameters"],
                kinds or "permutations only",
                row["nullity"],
                row["found"],
                "; ".join(filter(None, [missing, f"without a name: {left}" if left else ""]))
                or "–",
            ]
        )
    heads = ["network", "parameters", "kinds of its groups", "nullity", "found", "missing"]
    return markdown(heads, rows)


def kinds_planted(records: Records) -> str:
    """Planted elements recovered, without noise and with noise of 0.1 of each array's spread."""
    rows = []
    for name, row in records["kinds_planted"].items():
        if name == "machine":
            continue
        exact, noise = row["exact"], row["noise"]
        rows.append(
            [
                name,
                f"{exact['recovered']} of {exact['of']}",
                f"{noise['recovered']} of {noise['of']}",
                f"{100 * noise['units right']:.2f} %",
            ]
        )
    heads = [
        "network: what is planted",
        "recovered",
        "recovered, noise 0.1",
        "units right, noise 0.1",
    ]
    return markdown(heads, rows)


def robustness(records: Records) -> str:
    """What the long attack tried, and the defects it found."""
    rows = []
    for name, part in records["robustness"].items():
        unseen = part.get("counts", {}).get("unverifiable")
        rows.append(
            [
                ATTACKS[name],
                f"{part['tried']:,}",
                f"{part['defects']:,}",
                "–" if unseen is None else f"{unseen:,}",
            ]
        )
    return markdown(["what", "tried", "defects", "changes that no checksum could show"], rows)


def checksums(records: Records) -> str:
    """Reading a large file of draws with and without checksums."""
    record = records["checksums"]
    rows = []
    for kind, label in (("seconds", "time"), ("computing seconds", "time computing")):
        median = record[kind]["median"]
        for place in ("disk", "cache"):
            times = [f"{median[f'{place}, {name}']:.2f} s" for name in ("without", "with")]
            share = record[kind]["share of checksums"][place]
            rows.append([f"{record['bytes'] / 1e9:.2f} GB from {place}, {label}", *times])
            rows[-1].append(f"{share:+.1%}")
    return markdown(["reading", "without checksums", "with", "difference"], rows)


TABLES: dict[str, Callable[[Records], str]] = {
    "cluster-sweep": scaling_tables.cluster_sweep,
    "cluster-chain": scaling_tables.cluster_chain,
    "cluster-workers": scaling_tables.workers,
    "draws": scaling_tables.draws,
    "threads": scaling_tables.threads,
    "readme": readme,
    "barriers-mnist": barriers_mnist,
    "compact": compact,
    "residual-objectives": residual_objectives,
    "learned-alignment": learned_alignment,
    "alignment-speed": alignment_speed,
    "sampler-speed": sampler_speed,
    "vi-convergence": vi_convergence,
    "pytorch-models": pytorch_models,
    "pytorch-speed": pytorch_speed,
    "pytorch-merge": pytorch_merge,
    "robustness": robustness,
    "checksums": checksums,
    "transformers": transformers,
    "learned-transformers": learned_transformers,
    "gpt-widths": gpt_widths,
    "transformer-cost": transformer_cost,
    "mean-field-methods": mean_field_methods,
    "mclmc-bias": mclmc_bias,
    "symmetry-completeness": symmetry_completeness,
    "kinds-planted": kinds_planted,
    "verdicts": verdicts,
}


def fill(text: str, records: Records) -> str:
    """A page with the tables between its markers replaced."""

    def table(found: re.Match[str]) -> str:
        name = found[1]
        if name not in TABLES:
            raise ValueError(f"there is no table '{name}'; choose one of {', '.join(TABLES)}")
        body = TABLES[name](records)
        return f"<!-- results:{name} -->\n\n{body}\n\n<!-- /results:{name} -->"

    filled, count = BLOCK.subn(table, text)
    opened = OPENING.findall(text)
    if len(opened) != count:
        raise ValueError(
            f"{len(opened)} tables are opened ({', '.join(opened)}) but {count} are closed; "
            "end each with <!-- /results:NAME --> on a later line"
        )
    return filled


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def outdated(root: Path) -> dict[Path, str]:
    """The pages whose tables differ from the records, with the text they should have."""
    records = Records(root / "results")
    found = {}
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        try:
            filled = fill(text, records)
        except ValueError as error:
            raise ValueError(f"{page}: {error}") from None
        if filled != text:
            found[page] = filled
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    check = parser.parse_args().check
    found = outdated(ROOT)
    for page, text in found.items():
        if not check:
            page.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{page.relative_to(ROOT)}: {'out of date' if check else 'written'}\n")
    sys.exit(1 if check and found else 0)


if __name__ == "__main__":
    main()
