"""`scripts/demo [--cluster]`."""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Elastic training that gives the same bits.")
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="three jobs share this machine's devices while one of them is reclaimed and lent again",
    )
    if parser.parse_args().cluster:
        from isoscale.demo import many_jobs

        return many_jobs.main()
    from isoscale.demo import one_job

    return one_job.main()


if __name__ == "__main__":
    sys.exit(main())
