# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks [--quick] [--only NAME ...] [-o FOLDER]`."""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import table  # noqa: E402
from benchmarks.comparisons import ALL, FULL, QUICK  # noqa: E402
from benchmarks.contestants import Field, Setting  # noqa: E402
from benchmarks.harness import Row  # noqa: E402


def main() -> int:
    """Measures, prints the table, and writes it beside every time that was taken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns of fewer comparisons")
    parser.add_argument("--only", nargs="+", choices=ALL, metavar="NAME")
    parser.add_argument("-o", dest="folder", type=Path, default=Path("build/benchmarks"))
    options = parser.parse_args()
    on = table.machine()
    rows: list[Row] = []
    begin = time.monotonic()
    with Field() as field:
        for name in options.only or (QUICK if options.quick else FULL):
            print(f"{name}, after {(time.monotonic() - begin) / 60:.1f} minutes", file=sys.stderr)
            for row in ALL[name](Setting(options.quick, field)):
                print(*table.row_lines(row), sep="\n", file=sys.stderr)
                rows.append(row)
    on["minutes"] = round((time.monotonic() - begin) / 60, 1)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "results.json").write_text(table.as_json(rows, on) + "\n")
    (options.folder / "table.md").write_text(table.markdown(rows, on) + "\n")
    print(table.markdown(rows, on))
    return 0


if __name__ == "__main__":
    sys.exit(main())
