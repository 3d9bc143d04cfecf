"""How long does a page with a Gantt chart take: to write, to load in a browser, to zoom?

Chromium without a window or a graphics card, which draws with the processor alone. Prints the
table, and writes it to benchmarks/pages.md with the processor's name.
"""

import platform
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from engine import processor

import pipesim as ps
from pipesim.base.text import text_table
from pipesim.plot.page.window import MOST_BARS

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.plot.browser import browser, load, reason_against  # noqa: E402

RESULTS = ROOT / "benchmarks" / "pages.md"
SIZES = ((4, 8), (8, 128), (32, 480), (32, 15_625))  # ranks, micro-batches
REPEATS = 3
ZOOM = """
const done = arguments[0];
const figure = [...Bokeh.documents[0]._all_models.values()].find((each) => each.type === "Figure");
const { start, end } = figure.x_range;
figure.x_range.setv({ start, end: start + (end - start) / 2 });
requestAnimationFrame(() => requestAnimationFrame(() => done()));
"""


def main() -> None:
    rows = []
    with browser() as driver, TemporaryDirectory() as folder:
        for ranks, microbatches in SIZES:
            page = Path(folder) / "page.html"
            run = unequal_run(ranks, microbatches)
            begin = perf_counter()
            ps.plot.write_html(run, page)
            wrote = perf_counter() - begin
            loads, zooms = [], []
            for _ in range(REPEATS):
                loads.append(load(driver, page))
                begin = perf_counter()
                driver.execute_async_script(ZOOM)
                zooms.append(perf_counter() - begin)
            rows.append(
                {
                    "ops": f"{len(run.schedule):,}",
                    "write s": f"{wrote:.1f}",
                    "MB": f"{page.stat().st_size / 1e6:.1f}",
                    "load s": f"{statistics.median(loads):.2f}",
                    "zoom s": f"{statistics.median(zooms):.2f}",
                }
            )
    table = text_table({name: [row[name] for row in rows] for name in rows[0]})
    print(f"{table}\n\n{processor()}")
    head = f"# Pages\n\nWritten by `make bench`.\n\n{processor()}, Python "
    note = f"Of 1,000,000 ops a page shows the first {MOST_BARS:,}, and says so."
    python = platform.python_version()
    RESULTS.write_text(f"{head}{python}, Chromium\n\n```\n{table}\n```\n\n{note}\n")
    print(f"\nwrote {RESULTS.relative_to(ROOT)}")


def unequal_run(ranks: int, microbatches: int) -> ps.Run:
    forward = [1 + 0.01 * stage for stage in range(ranks)]
    pipe = ps.Pipeline.from_costs(
        forward, [2 * time for time in forward], latency_ms=0.2, stash_bytes=10**8
    )
    return ps.simulate(pipe, "1f1b", microbatches, engine="replay")


if __name__ == "__main__":
    if reason_against():
        print(f"benchmarks/pages.py is left out: {reason_against()}")
    else:
        main()
