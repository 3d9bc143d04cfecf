"""What is a Gantt chart worth that one can hover over?

The straggler of the first experiment with 8 micro-batches, as a page: out/17_page.html. Where there
is a browser (Chromium and its driver, and selenium), it is opened, one micro-batch is picked and
the mouse is held over its backward on rank 2; what is seen then is out/17_page.png. Rank 2 was idle
for 130.7 ms before it, waiting for the gradient of rank 3, the straggler.
"""

import argparse
import io
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

import pipesim as ps

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "experiments" / "configs" / "straggler.toml"
OUT = ROOT / "out"
MICROBATCHES, PICKED, RANK = 8, 3, 2
SIZE = 1200, 660  # pixels
FLAGS = ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--enable-unsafe-swiftshader")
READY = "return Boolean(window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle)"
PICK = """
const models = [...Bokeh.documents[0]._all_models.values()];
models.find((each) => each.type === "Select").value = String(arguments[0]);
const figure = models.find((each) => each.type === "Figure");
const view = Bokeh.index.find_one(figure), box = view.el.getBoundingClientRect();
const { data } = figure.renderers.find((each) => each.name === "bars B").data_source;
const row = [...data.microbatch.keys()].find(
  (row) => data.rank[row] === arguments[1] && data.microbatch[row] === arguments[0]);
const x = (data.left[row] + data.right[row]) / 2, y = (data.top[row] + data.bottom[row]) / 2;
return [box.left + view.frame.x_scale.compute(x), box.top + view.frame.y_scale.compute(y)];
"""


def main(quick: bool = False) -> ps.Run:
    OUT.mkdir(exist_ok=True)
    overrides = {"run.microbatches": MICROBATCHES}
    run = ps.simulate_config(ps.read_config(CONFIG, overrides))
    ps.plot.write_html(run, OUT / "17_page.html")
    print("wrote out/17_page.html")
    ops = run.trace[(run.trace["rank"] == RANK) & (run.trace.resource == "compute")]
    start = ops.start[(ops.kind == "B") & (ops.microbatch == PICKED)].iloc[0]
    idle = start - ops.end[ops.end <= start].max()
    print(f"rank {RANK} was idle for {idle:.1f} ms before {RANK}B{PICKED}")
    if quick:
        return run
    if find_spec("selenium") is None or not shutil.which("chromedriver"):
        print("no picture of it: selenium and Chromium's driver are needed")
    else:
        picture = seen(OUT / "17_page.html")
        picture.quantize(256, dither=Image.Dither.NONE).save(OUT / "17_page.png", optimize=True)
        print("wrote out/17_page.png")
    return run


def seen(page: Path) -> Image.Image:
    """Return what a browser shows with a micro-batch picked and the mouse over one of its ops."""
    from selenium import webdriver
    from selenium.webdriver import ActionChains

    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--window-size={SIZE[0]},{SIZE[1]}"):
        options.add_argument(flag)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.get(page.as_uri())
        while not driver.execute_script(READY):
            time.sleep(0.05)
        place = driver.execute_script(PICK, PICKED, RANK)
        actions = ActionChains(driver)
        actions.w3c_actions.pointer_action.move_to_location(*map(round, place))
        actions.perform()
        time.sleep(1.0)  # the tooltip comes, and the picture settles
        shot = driver.get_screenshot_as_png()
    finally:
        driver.quit()
    return Image.open(io.BytesIO(shot)).convert("RGB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the page without a picture of it")
    given = parser.parse_args()
    if find_spec("bokeh") is None:
        print("needs Bokeh: pip install 'pipesim[html]'", file=sys.stderr)
        sys.exit(2)
    main(given.quick)
