"""Pages in a real browser: what is drawn, what hovering and clicking do, and how fast it is."""

import io
import time

import numpy as np
import pytest
from PIL import Image

import pipesim as ps
from pipesim.plot.page.window import MOST_BARS
from tests.plot.browser import FITS, browser, complaints, load, needs_browser, requests, wait_for

pytestmark = needs_browser

FIGURES = """
const models = [...Bokeh.documents[0]._all_models.values()];
const figures = models.filter((model) => model.type === "Figure" && model.visible);
const named = (figure, name) =>
  figure.renderers.filter((each) => (each.name || "").startsWith(name));
const select = models.find((model) => model.type === "Select");
"""
PLACE = """
const view = Bokeh.index.find_one(figures[0]), box = view.el.getBoundingClientRect();
const { left, right, top, bottom } = named(figures[0], arguments[0])[0].data_source.data;
const x = (left[arguments[1]] + right[arguments[1]]) / 2;
const y = (top[arguments[1]] + bottom[arguments[1]]) / 2;
return [box.left + view.frame.x_scale.compute(x), box.top + view.frame.y_scale.compute(y)];
"""
TOOLTIPS = """
const texts = [];
const walk = (node) => {
  if (node.shadowRoot) walk(node.shadowRoot);
  if (String(node.className).includes("bk-Tooltip") && node.shadowRoot)
    texts.push([...node.shadowRoot.children].map((each) => each.innerText || "").join(" "));
  for (const child of node.children || []) walk(child);
};
walk(document.body);
return texts.join(" ").replace(/\\s+/g, " ");
"""


@pytest.fixture(scope="module")
def driver():
    with browser() as driver:
        yield driver


def run_of(p, m, name="1f1b"):
    pipe = ps.Pipeline.from_costs(
        [1 + 0.25 * s for s in range(p)], [2.0] * p, latency_ms=0.25, stash_bytes=1000
    )
    return ps.simulate(pipe, name, m, engine="replay")


def ask(driver, script, *arguments):
    return driver.execute_script(FIGURES + script, *arguments)


def pointer(driver, place, click=False):
    """Move the mouse to a place, and click there if so."""
    from selenium.webdriver import ActionChains

    actions = ActionChains(driver)
    actions.w3c_actions.pointer_action.move_to_location(*(round(each) for each in place))
    if click:
        actions.w3c_actions.pointer_action.click()
    actions.perform()


@pytest.fixture
def page(driver, tmp_path):
    ps.plot.write_html(run_of(4, 8), tmp_path / "page.html")
    load(driver, tmp_path / "page.html")
    return driver


def test_it_loads_alone_and_shows_every_op(page, tmp_path):
    assert complaints(page) == []
    assert requests(page) == [(tmp_path / "page.html").resolve().as_uri()]
    count = "return named(figures[0], 'bars').map((each) => each.data_source.data.left.length)"
    assert ask(page, count) == [4 * 8, 4 * 8]
    assert ask(page, "return figures.length") == 2  # and what ranks hold
    picture = np.asarray(Image.open(io.BytesIO(page.get_screenshot_as_png())).convert("RGB"))
    colours = {tuple(colour) for colour in picture.reshape(-1, 3)[::7].tolist()}
    assert {(0xA6, 0xD3, 0xF0), (0x0F, 0x5E, 0x9C)} < colours  # forwards and backwards


def test_the_numbers_of_micro_batches_stand_in_the_bars(page):
    texts = "return named(figures[0], 'labels')[0].data_source.data.text.map(String)"
    wait_for(page, FIGURES + "return named(figures[0], 'labels')[0].data_source.data.x.length > 0")
    assert sorted(ask(page, texts)) == sorted(str(m) for m in range(8) for _ in range(8))
    ask(page, "figures[0].x_range.setv({ start: 0, end: 3.1 })")
    wait_for(page, FIGURES + "return named(figures[0], 'labels')[0].data_source.data.x.length < 9")
    assert set(ask(page, texts)) == {"0", "1", "2", "3"}


LABELS = "return Object.values(named(figures[0], 'labels')[0].data_source.data.%s)"
LABELLED = FIGURES + "return named(figures[0], 'labels')[0].data_source.data.x.length > 0"


def test_a_number_stands_in_the_part_of_a_bar_that_is_in_view(page):
    wait_for(page, LABELLED)
    ask(page, "figures[0].x_range.setv({ start: 0.4, end: 3.5 })")
    # Of rank 0: 0F0 to 0F3, of which the view cuts the first and the last.
    wait_for(page, FIGURES + (LABELS % "x") + ".length < 9")
    texts, x, y = (ask(page, LABELS % name) for name in ("text", "x", "y"))
    first = {text: x for text, x, y in zip(texts, x, y, strict=True) if y == 0}
    assert first == {"0": pytest.approx(0.7), "1": 1.5, "2": 2.5, "3": pytest.approx(3.25)}


def test_the_widest_number_decides_for_all_bars_of_a_kind(driver, tmp_path):
    ps.plot.write_html(
        ps.simulate(ps.Pipeline.from_costs([1.0], [1.0]), "gpipe", 100), tmp_path / "page.html"
    )
    load(driver, tmp_path / "page.html")
    width = ask(driver, "return figures[0].inner_width")
    # Where a bar has 13 pixels there is room for one figure, but not for two.
    for end, shown in ((10, 10), (width / 13, 0), (20, 20)):
        ask(driver, "figures[0].x_range.setv({ start: 0, end: arguments[0] })", end)
        wait_for(driver, FIGURES + (LABELS % "x") + f".length === {shown}")


def hovered(driver, name, row):
    """Return what is told of a bar."""
    pointer(driver, ask(driver, PLACE, name, row))
    deadline = time.monotonic() + 10
    while "op:" not in (told := driver.execute_script(TOOLTIPS)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return told


def test_hovering_tells_of_an_op(page):
    # The first backward of rank 0 waits for that of rank 1.
    run = run_of(4, 8)
    first = run.trace.query("rank == 0 and kind == 'B' and microbatch == 0").iloc[0]
    told = hovered(page, "bars B", 0)
    assert "op: 0B0" in told
    assert "stage: 0 on rank 0" in told
    assert f"start: {first.start:g} ms" in told
    assert f"idle before: {first.start - 4:g} ms, for 1B0 of rank 1" in told


def test_slices_are_named_as_in_other_pictures(driver, tmp_path):
    run = ps.simulate(ps.Pipeline.from_costs([1.0] * 4, [2.0] * 4), "seq1f1b", 4)
    ps.plot.write_html(run, tmp_path / "page.html")
    load(driver, tmp_path / "page.html")
    wait_for(driver, LABELLED)
    assert set(ask(driver, LABELS % "text")) == {f"{m}.{k}" for m in range(4) for k in range(2)}
    told = hovered(driver, "bars B", 0)
    assert "op: 0B0.1" in told
    assert "for 1B0.1 of rank 1" in told


@pytest.mark.parametrize(
    ("forward", "options", "row", "words"),
    [
        ([1, 1, 1, 3], {"queue_capacity": 1}, 4, "2 ms, queue full"),
        ([2, 1, 5], {"queue_capacity": 1}, 10, "3 ms: 1 ms for 0F2 of rank 0, 2 ms queue full"),
        ([1, 1, 1, 3], {"protocol": "odd_even"}, 1, "0.25 ms, blocked in a transfer"),
        (
            [1, 1, 1, 3],
            {"protocol": "odd_even"},
            9,
            "0.5 ms, blocked in a transfer, input from 0F1 of rank 0",
        ),
    ],
)
def test_a_wait_has_its_causes(driver, tmp_path, forward, options, row, words):
    latency = 0.25 if "protocol" in options else 0.0
    pipe = ps.Pipeline.from_costs(forward, [2.0] * len(forward), latency_ms=latency)
    ps.plot.write_html(ps.simulate(pipe, "gpipe", 8, **options), tmp_path / "page.html")
    load(driver, tmp_path / "page.html")
    assert f"idle before: {words}" in hovered(driver, "bars F", row)


def test_times_are_told_with_the_digits_that_they_need(driver, tmp_path):
    for cost, text in [(1e-9, "end: 0.000000001 ms"), (12_345_678.25, "end: 12,345,678.3 ms")]:
        run = ps.simulate(ps.Pipeline.from_costs([cost], [cost]), "1f1b", 1)
        ps.plot.write_html(run, tmp_path / "page.html")
        load(driver, tmp_path / "page.html")
        assert text in hovered(driver, "bars F", 0)


PICKED = """
return [select.value, named(figures[0], "bars").map(
  (each) => each.data_source.selected.indices.map((row) => each.data_source.data.microbatch[row])
), named(figures[0], "transfers")[0].data_source.data.x0.length]
"""


def test_a_click_lights_up_a_micro_batch_and_one_beside_puts_it_out(page):
    pointer(page, ask(page, PLACE, "bars F", 2), click=True)
    wait_for(page, FIGURES + "return select.value === '2'")
    # Four forwards and backwards, three activations and three gradients.
    assert ask(page, PICKED) == ["2", [[2] * 4, [2] * 4], 6]
    pointer(page, ask(page, PLACE, "idle drain", 0), click=True)
    wait_for(page, FIGURES + "return select.value === 'all'")
    assert ask(page, PICKED) == ["all", [[], []], 0]


def test_the_list_picks_a_micro_batch_in_every_chart(driver, tmp_path):
    runs = [run_of(4, 8), run_of(4, 8, "gpipe")]
    ps.plot.write_html(runs, tmp_path / "page.html")
    load(driver, tmp_path / "page.html")
    ask(driver, "select.value = '5'")
    picked = ask(
        driver,
        "return figures.map((figure) => named(figure, 'bars').map("
        "(each) => each.data_source.selected.indices.length))",
    )
    assert picked == [[4, 4], [4, 4]]
    arrows = ask(
        driver,
        "return figures.map((figure) => figure.center.filter("
        "(each) => each.name === 'saved').map((each) => [each.x_start.value, each.x_end.value]))",
    )
    ends = sorted(run.makespan for run in runs)
    assert [each for each in arrows if each] == [[ends]]
    assert complaints(driver) == []


def test_buttons_and_legend_show_and_hide(page):
    groups = "const group = models.find((each) => each.type === 'RadioButtonGroup');"
    assert ask(page, groups + "return group.labels") == ["nothing", "in flight", "bytes"]
    for active, count in ((0, 1), (2, 2)):
        ask(page, groups + "group.active = arguments[0]", active)
        assert ask(page, "return figures.length") == count
    legend = "models.find((each) => each.type === 'Legend')"
    items = ask(page, f"return {legend}.items.map((each) => each.label.value)")
    assert {"forward (F)", "waits for gradient", "drain", "critical path"} < set(items)
    path = "const path = named(figures[0], 'critical path')[0];"
    assert ask(page, path + "return path.visible") is False
    assert ask(page, path + "return path.data_source.data.left.length") >= 8


def test_titles_and_legends_fit_into_windows_of_any_width(driver, tmp_path):
    pipe = ps.Pipeline.from_costs(
        [1, 1.25, 1, 1], [2, 2, 2, 2.123], latency_ms=0.25, title="a title of many words" * 3
    )
    runs = [ps.simulate(pipe, name, 8) for name in ("1f1b", "gpipe")]
    ps.plot.write_html(runs, tmp_path / "page.html")
    whole = driver.get_window_size()
    try:
        for width in (700, 800, 1000, 1300, 1900):
            driver.set_window_size(width, 900)
            load(driver, tmp_path / "page.html")
            wait_for(driver, FITS)
        lines = "figures[0].title.text.text.split('\\n').length"
        wide = ask(driver, f"return {lines}")
        driver.set_window_size(700, 900)
        wait_for(driver, f"{FIGURES} return {lines} > {wide}")
        wait_for(driver, FITS)
    finally:
        driver.set_window_size(whole["width"], whole["height"])
    assert complaints(driver) == []


@pytest.mark.parametrize("name", ["dualpipe", "zb_v", "seq1f1b"])
def test_orders_of_all_kinds_are_drawn(driver, tmp_path, name):
    schedule = ps.build_schedule(name, 4, 8)
    costs = {"forward": 1.0, "input_grad": 1.0, "weight_grad": 0.5, "overlap_ms": 2.0}
    pipe = ps.Pipeline.from_costs(**costs, stages=schedule.stages, placement=schedule.placement)
    ps.plot.write_html(ps.simulate(pipe, schedule), tmp_path / "page.html")
    load(driver, tmp_path / "page.html")
    count = "return named(figures[0], 'bars').map((each) => each.data_source.data.left.length)"
    assert sum(ask(driver, count)) == len(schedule)
    assert complaints(driver) == []


HEIGHTS = """
const view = Bokeh.index.find_one(figures[0]), box = view.el.getBoundingClientRect();
return [0, 3].map((rank) =>
  [-0.35, 0.35].map((side) => Math.round(box.top + view.frame.y_scale.compute(rank + side))));
"""


def test_bars_narrower_than_a_pixel_lighten_with_the_idle_time_between_them(driver, tmp_path):
    pipe = ps.Pipeline.from_costs([1, 1, 1, 2], [2, 2, 2, 4])
    ps.plot.write_html(ps.simulate(pipe, "1f1b", 3000, engine="replay"), tmp_path / "page.html")
    load(driver, tmp_path / "page.html")
    heights = ask(driver, HEIGHTS)
    deadline = time.monotonic() + 10
    while True:
        picture = np.asarray(Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("L"))
        half_idle, busy = (picture[top:bottom, 400:800].mean() for top, bottom in heights)
        # At full strength they are 121 and 110 of 255.
        if (half_idle > 175 and busy < 165) or time.monotonic() > deadline:
            break
    assert half_idle > 175
    assert busy < 165
    strengths = "named(figures[0], 'bars').map((bar) => bar.glyph.fill_alpha.transform.tags[0])"
    ask(driver, "figures[0].x_range.setv({ start: 0, end: 100 })")
    wait_for(driver, f"{FIGURES} return !{strengths}.some(Number.isFinite)")
    assert complaints(driver) == []


def test_what_takes_no_time_is_a_page_too(driver, tmp_path):
    still = ps.simulate(ps.Pipeline.from_costs(0.0, 0.0, stages=2), "1f1b", 2)
    ps.plot.write_html(still, tmp_path / "page.html")
    load(driver, tmp_path / "page.html")
    assert complaints(driver) == []


def test_of_a_million_ops_a_part_is_shown_with_a_notice(driver, tmp_path):
    ps.plot.write_html(run_of(32, 15_625), tmp_path / "page.html")
    load(driver, tmp_path / "page.html")
    count = "return named(figures[0], 'bars').map((each) => each.data_source.data.left.length)"
    assert sum(ask(driver, count)) <= MOST_BARS
    notices = ask(driver, "return models.filter((each) => each.type === 'Div').map((e) => e.text)")
    assert any("the run has 1,000,000" in text and "--window" in text for text in notices)
    assert (tmp_path / "page.html").stat().st_size < 10_000_000
