"""Slow counts on a cluster, in a process that tests stop: `cluster_process.py FOLDER CLUSTER`."""

import signal
import sys
from pathlib import Path

from cluster_stages import Count, count_up
from onebasin.experiments.cluster import connect, perform_all
from onebasin.experiments.runner import Run
from onebasin.experiments.stage import Stage

STAGES = [Stage(count_up, Count(n, 0.05)) for n in (200, 201)]


def main(folder: str, cluster: str) -> None:
    run = Run(Path(folder), "toy", quiet=True)
    run.open()
    with connect(cluster) as client:
        perform_all(client, run, STAGES)


if __name__ == "__main__":
    # A shell lets the commands that it runs in the background ignore Ctrl-C, and they pass that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(*sys.argv[1:])
