"""A browser without a window, for tests that look at pages."""

import json
import shutil
import time
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # of no use, and not there, as root in a container
    "--disable-dev-shm-usage",
    "--window-size=1300,1000",
    "--enable-unsafe-swiftshader",  # WebGL without a graphics card
)
PATIENCE = 30.0  # seconds
IDLE = "return Boolean(window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle)"
# Whether one need not scroll to the side, and all of every title and legend is inside its figure.
FITS = """
const inside = (box, frame) => box.left >= frame.left - 1 && box.right <= frame.right + 1;
const fits = (figure) => {
  const view = Bokeh.index.find_one(figure), frame = view.el.getBoundingClientRect();
  const all = [...figure.above, ...figure.below].map((each) => Bokeh.index.find_one(each));
  const legends = all.filter((each) => each.model.type === "Legend").map((each) => each.el);
  const context = document.createElement("canvas").getContext("2d");
  const { text_font_style: style, text_font_size: size, text_font: font, text } = figure.title;
  context.font = `${style} ${size} ${font}`;
  const lines = (text.text ?? text).split("\\n");
  return lines.every((line) => context.measureText(line).width <= figure.inner_width) &&
    legends.every((legend) => inside(legend.getBoundingClientRect(), frame));
};
const page = document.documentElement;
const figures = [...Bokeh.documents[0]._all_models.values()].filter((each) =>
  each.type === "Figure" && each.visible);
return page.scrollWidth <= page.clientWidth && figures.every(fits);
"""
# What a driver of graphics says of its speed is no fault of a page.
HARMLESS = ("GL Driver Message", "GroupMarkerNotSet")


def reason_against():
    """Return what there is no browser for, None if there is one."""
    if find_spec("selenium") is None:
        return "selenium is not installed"
    if _chromium() is None:
        return "no browser: Chromium is not installed"
    return None if shutil.which("chromedriver") else "no browser: chromedriver is not installed"


def _chromium():
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next(filter(None, map(shutil.which, names)), None)


needs_browser = pytest.mark.skipif(reason_against() is not None, reason=str(reason_against()))


@contextmanager
def browser():
    """Give the driver of a browser, and end both afterwards."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = _chromium()
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def load(driver, path):
    """Open a page, wait until all of it is drawn, and return how long that took [s]."""
    driver.get_log("browser")  # what was before is done with
    driver.get_log("performance")
    begin = time.perf_counter()
    driver.get(path.resolve().as_uri())
    wait_for(driver, IDLE)
    return time.perf_counter() - begin


def wait_for(driver, script):
    """Wait until a script returns true."""
    end = time.perf_counter() + PATIENCE
    while not driver.execute_script(script):
        assert time.perf_counter() < end, f"not within {PATIENCE} s: {script}"
        time.sleep(0.02)


def complaints(driver):
    """Return the warnings and errors that a page has written since the last call."""
    return [
        entry["message"]
        for entry in driver.get_log("browser")
        if entry["level"] in ("WARNING", "SEVERE")
        and not any(words in entry["message"] for words in HARMLESS)
    ]


def requests(driver):
    """Return what was asked for since the last call: addresses, but for data in the page itself."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    addresses = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    return [address for address in addresses if not address.startswith(("data:", "blob:"))]
