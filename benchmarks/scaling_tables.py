"""Tables of what many workers, draws and devices cost."""

from record_tables import Records, markdown


def cluster_sweep(records: Records) -> str:
    """Arithmetic for a sweep on 1,000 GPUs."""
    rows = [
        [
            f"{int(seconds)} s",
            f"{found['fits_per_hour']:,.0f}",
            f"{found['written_bytes_per_second'] / 1e6:,.0f} MB/s",
            f"{found['scheduler_load']:.0%}",
            f"{found['busy_gpus']:.0%}",
        ]
        for seconds, found in records["cluster_arithmetic"]["sweep"].items()
    ]
    heads = ["one fit", "fits per hour", "written to the store", "scheduler busy", "GPUs busy"]
    return markdown(heads, rows)


def cluster_chain(records: Records) -> str:
    """Arithmetic for one chain on several GPUs."""
    found = records["cluster_arithmetic"]["chain"]
    shards = list(next(iter(found.values())))
    rows = [[link, *(f"{by[s]:.1f}×" for s in shards)] for link, by in found.items()]
    return markdown(["link between the GPUs", *(f"{s} GPUs" for s in shards)], rows)


def workers(records: Records) -> str:
    """A sweep by one worker, by two, and by four that are killed."""
    found = records["sweep_workers"]
    if not found["tables_equal"]:
        raise ValueError("the workers' tables differ, and the pages say that they do not")
    two = found["seconds_two_workers"]
    rows = [
        ["one worker, one thread", found["seconds_one_worker"], found["times_faster_with_two"]],
        [
            "one worker, the threads of both cores",
            found["seconds_one_worker_on_both_cores"],
            found["times_faster_than_one_on_both_cores"],
        ],
        ["two workers, one thread each", two, 1.0],
    ]
    cells = [[name, f"{seconds:.0f} s", f"{times:.2f}×", "–"] for name, seconds, times in rows]
    again = f"{found['stages_begun_again']} of {found['stages']}"
    cells.append([f"four workers, one killed {found['kills']} times", "–", "–", again])
    heads = ["time", "times that of two workers", "stages begun again"]
    return markdown([f"{found['fits']} fits by", *heads], cells)


def draws(records: Records) -> str:
    """Compaction of many draws of a wide network: memory and processor time."""
    rows = []
    for count in (1000, 10000):
        found = records["compact_speed"][f"{count} draws, rank 50, likelihood"]
        rows.append(
            [
                f"{found['draws']:,}",
                f"{found['peak_gib']:.2f} GiB",
                f"{found['cpu_seconds_per_draw']:.3f} s",
            ]
        )
    heads = ["draws", "largest memory", "time of the processors, for each draw"]
    return markdown(heads, rows)


def threads(records: Records) -> str:
    """Alignment by l2 with the default threads, against one thread for products."""
    record = records["threads"]
    rows = []
    for width in filter(str.isdecimal, record["0 busy loops"]):
        cells = [f"MLP 3×{width}"]
        for busy in ("0 busy loops", "2 busy loops"):
            ways = record[busy][width]
            cells += [f"{1000 * ways['default']['median']:.3g} ms"]
            cells += [
                f"{ways[n]['median_ratio_to_one_core']:.2f}×" for n in ("default", "all cores")
            ]
        rows.append(cells)
    heads = ["network"]
    for when in ("quiet", "two busy loops"):
        heads += [f"{when}: default", "of one thread's time", "with all cores always"]
    return markdown(heads, rows)
