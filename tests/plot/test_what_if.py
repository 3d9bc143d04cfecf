"""The page with sliders for a sweep."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from bokeh.models import Div

import pipesim as ps
from pipesim.cli import main
from pipesim.plot.what_if import page as what_if_page
from pipesim.plot.what_if import write as what_if
from pipesim.plot.what_if.data import (
    NUMBERS,
    PageFullError,
    blank_picture,
    packed,
    pictures_of,
    shown_numbers,
)
from pipesim.plot.what_if.dials import dials_of
from pipesim.studies.sweep.sweep import NUMBERS as COLUMNS
from tests.plot.browser import FITS, browser, complaints, load, needs_browser, requests, wait_for


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        'title = "two < three"\n'
        '[run]\nschedule = "1f1b"\nmicrobatches = 2\n'
        "[stages]\ncount = 2\nforward_ms = 1\ninput_grad_ms = 1\nweight_grad_ms = 1\n"
        '[sweep.axes]\n"run.schedule" = ["gpipe", "zb_h1"]\n"run.microbatches" = [2, 4]\n'
    )
    return path


def write(config, overrides=None, name="page.html"):
    path = config.parent / name
    table = ps.sweep_config(config, overrides)
    ps.plot.write_what_if(table, ps.sweep_runs(config, overrides), path)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"run.protocol": "paired", "sweep.axes": {"links.latency_ms": [0, 0.3]}},
        {"sweep.axes": {"imbalance": {"spread": [0.0, 0.4], "draws": 3}}},
        {"sweep.axes": {"stages.forward_ms[1]": {"uniform": [1, 2], "draws": 4}}},
        {"sweep.axes": {"run.microbatches": [2, 2.5, 3]}},
        {"sweep.axes": {"run.microbatches": [2, 3]}, "run.engine": "simpy"},
        {
            "sweep.axes": {"training.speed": [[1, 1, 1], [1, 0.5, 1]]},
            "training": {"replicas": 3, "optimizer_ms": 0.5},
        },
    ],
)
def test_runs_have_the_times_of_their_rows_to_the_last_bit(config, changes):
    table = ps.sweep_config(config, changes)
    runs = list(ps.sweep_runs(config, changes))
    assert len(runs) == len(table)
    for run, row in zip(runs, table.to_dict(orient="records"), strict=True):
        if run is None:
            assert row["error"]
            continue
        assert row["error"] is None
        for name, value in run.summary().items():
            if name in COLUMNS:
                # Shares are quotients of sums that may be added up in another order.
                close = value if name == "makespan_ms" else pytest.approx(value or 0.0, rel=1e-12)
                assert math.isnan(row[name]) if value is None else row[name] == close, name


def test_runs_are_made_when_they_are_asked_for(config):
    done = []
    runs = ps.sweep_runs(config, progress=lambda *counts: done.append(counts))
    assert next(runs).makespan == 9.0  # two forwards and two backwards of 2 ms, and one of each
    assert done == []
    assert len(list(runs)) == 3
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_every_number_of_a_sweep_has_words():
    assert set(NUMBERS) == set(COLUMNS)


def test_each_setting_of_two_sliders_has_its_row(config):
    dials, rows = dials_of(ps.sweep_config(config))
    assert [(dial.keys, dial.texts) for dial in dials] == [
        (("run.schedule",), ["gpipe", "zb_h1"]),
        (("run.microbatches",), ["2", "4"]),
    ]
    assert rows.tolist() == [[0, 1], [2, 3]]


def test_keys_that_vary_together_have_one_slider(config):
    lists = {"run.schedule,run.microbatches": [["gpipe", "1f1b", "gpipe"], [2, 2, 4]]}
    table = ps.sweep_config(config, {"sweep.axes": lists | {"links.latency_ms": [0.0, 0.25]}})
    dials, rows = dials_of(table)
    assert [dial.name for dial in dials] == ["run.schedule, run.microbatches", "links.latency_ms"]
    assert dials[0].texts == ["gpipe, 2", "1f1b, 2", "gpipe, 4"]
    assert rows.tolist() == [[0, 1], [2, 3], [4, 5]]
    dials, rows = dials_of(ps.sweep_config(config, {"sweep.mode": "zip"}))
    assert [dial.texts for dial in dials] == [["gpipe, 2", "zb_h1, 4"]]
    assert rows.tolist() == [0, 1]


def test_draws_and_stages_have_sliders_of_their_own(config):
    drawn = {"imbalance": {"spread": [0.1, 0.2], "draws": 3}}
    table = ps.sweep_config(config, {"sweep.axes": drawn})
    dials, rows = dials_of(table)
    assert [(dial.name, dial.texts) for dial in dials] == [
        ("imbalance.spread", ["0.1", "0.2"]),
        ("imbalance.draw", ["0", "1", "2"]),
    ]
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_draws_of_numbers_rise_along_their_slider(config):
    drawn = {"stages.forward_ms[1]": {"uniform": [1, 2], "draws": 5}}
    table = ps.sweep_config(config, {"sweep.axes": drawn})
    (dial,), rows = dials_of(table)
    order = np.argsort(table["stages.forward_ms[1]"]).tolist()
    assert order != sorted(order)
    assert rows.tolist() == order
    assert dial.texts == sorted(dial.texts)
    falling = ps.sweep_config(config, {"sweep.axes": {"run.microbatches": [4, 3, 2]}})
    assert dials_of(falling)[0][0].texts == ["4", "3", "2"]


def test_values_are_told_apart_on_a_slider(config):
    lists = [[1.0, 1 / 3], [1.0, 2 / 3]]
    dials, _ = dials_of(ps.sweep_config(config, {"sweep.axes": {"stages.forward_ms": lists}}))
    assert dials[0].texts == ["[1, 0.333333]", "[1, 0.666667]"]
    near = {"stages.forward_ms": [1.0, 1.00000001], "run.microbatches": [2, 2, 3]}
    dials, rows = dials_of(ps.sweep_config(config, {"sweep.axes": near}))
    assert [dial.texts for dial in dials] == [["1.0", "1.00000001"], ["2", "3"]]
    assert rows.tolist() == [[0, 2], [3, 5]]  # of equal points the first
    titles = {"title": ["a" * 50 + "b", "a" * 50 + "c"]}
    dials, _ = dials_of(ps.sweep_config(config, {"sweep.axes": titles}))
    assert dials[0].texts == [f"{number}: {'a' * 39}…" for number in (0, 1)]


def test_another_table_is_refused(config):
    table = ps.sweep_config(config)
    part = table.iloc[:3]
    part.attrs = table.attrs
    with pytest.raises(ValueError, match="no row for 1 of 4 combinations"):
        dials_of(part)
    with pytest.raises(ValueError, match="not what sweep_config returns"):
        dials_of(pd.DataFrame({"a": [1]}))
    with pytest.raises(ValueError, match="row 1 of the table has numbers, but there is no run"):
        pictures_of([*ps.sweep_runs(config)][:1] + [None] * 3, [None] * 4, most=100)


def test_numbers_that_say_nothing_are_left_out(config):
    table = ps.sweep_config(config)
    assert shown_numbers(table)[:2] == ["makespan_ms", "inflation"]
    assert not {"step_ms", "peak_memory_bytes"} & set(shown_numbers(table))
    more = {"stages.stash_bytes": 10, "training": {"optimizer_ms": 0.5}}
    assert shown_numbers(ps.sweep_config(config, more))[:2] == ["makespan_ms", "step_ms"]
    assert "peak_memory_bytes" in shown_numbers(ps.sweep_config(config, more))


def test_pictures_share_the_columns_that_they_have_in_common(config):
    values = {"sweep.axes": {"stages.weight_grad_ms": [1, 2]}}
    pictures, _ = pictures_of(ps.sweep_runs(config, values), [None, None], most=100)
    columns, points = packed(pictures)
    first, second = (point["boxes"]["bars B"] for point in points)
    for name in ("microbatch", "stage", "colour", "top"):
        assert first[name] == second[name], name
    # The backwards of rank 0, then of rank 1; they take 2 ms, or 3.
    assert columns[first["right"]].tolist() == [6, 9, 4, 7]
    assert columns[second["right"]].tolist() == [8, 12, 5, 9]


def test_a_blank_picture_has_all_kinds_and_rows_of_others(config):
    pictures, _ = pictures_of(ps.sweep_runs(config), [None, "why", None, "why"], most=100)
    assert [picture is None for picture in pictures] == [False, True, False, True]
    blank = blank_picture(pictures)
    assert list(blank.bars) == ["F", "B", "I", "W"]
    assert len(blank.shares) == 2
    assert all(np.isnan(columns["left"]).all() for columns in blank.bars.values())


def test_too_many_ops_or_points_have_no_chart(config, monkeypatch):
    begun = []
    runs = (begun.append(run) or run for run in ps.sweep_runs(config))
    with pytest.raises(PageFullError, match=r"^the first 2 of 4 points have 24 ops, and a page "):
        pictures_of(runs, [None] * 4, most=11)
    assert len(begun) == 2  # 8 ops, then 16 more
    with pytest.raises(PageFullError, match=r"^4 points have 60 ops, and a page holds 59$"):
        pictures_of(ps.sweep_runs(config), [None] * 4, most=59)
    assert "No chart:" not in write(config).read_text()
    with monkeypatch.context() as patch:
        patch.setattr(what_if_page, "MOST_BARS", 59)
        text = "No chart: 4 points have 60 ops, and a page holds 59. The numbers"
        assert text in write(config).read_text()
    monkeypatch.setattr(what_if_page, "MOST_POINTS", 3)
    assert "No chart: the sweep has 4 points, and a page holds 3. " in write(config).read_text()
    monkeypatch.setattr(what_if, "MOST_ROWS", 3)
    with pytest.raises(ValueError, match=r"page\.html: a page takes 3 points, not 4"):
        write(config)


def test_a_page_says_how_to_use_it_and_where_the_costs_come_from():
    config = Path(__file__).parents[2] / "experiments" / "configs" / "microbatch_size.toml"
    table = ps.sweep_config(config)
    texts = [
        each.text
        for each in what_if_page.draw_page(table, ps.sweep_runs(config))[0].select({"type": Div})
    ]
    assert any(text.startswith("hover: what an op waited for; click:") for text in texts)
    assert any(text.startswith("Costs: made up: forward 0.5 ms a call") for text in texts)


def test_a_page_has_the_ending_of_one(config):
    with pytest.raises(ValueError, match=r"page\.png: a page is written as \.html"):
        write(config, name="page.png")
    assert list(config.parent.iterdir()) == [config]


def test_a_sweep_as_a_page_on_the_command_line(capsys, tmp_path, config):
    target = tmp_path / "new" / "page.html"
    assert main(["sweep", str(config), "--html", str(target)]) == 0
    captured = capsys.readouterr()
    assert f"wrote {target}" in captured.err
    assert "makespan_ms" in captured.out
    assert "<script" in target.read_text()
    assert main(["sweep", str(config), "--html", str(tmp_path / "page.png")]) == 2
    assert "page.png: the ending must be .html" in capsys.readouterr().err


def test_without_bokeh_the_command_says_what_to_install(capsys, tmp_path, config, monkeypatch):
    monkeypatch.setattr("pipesim.base.files.find_spec", lambda name: None)
    assert main(["sweep", str(config), "--html", str(tmp_path / "page.html")]) == 2
    captured = capsys.readouterr()
    assert "needs bokeh; pip install 'pipesim[html]'" in captured.err
    assert captured.out == ""


def set_slider(driver, name, position):
    driver.execute_script(
        "const slider = Bokeh.documents[0].get_model_by_name(arguments[0]);"
        "slider.value = slider.categories[arguments[1]];",
        name,
        position,
    )


def seen(driver):
    """Return what a page shows: title, rows, bars by kind, limits, numbers, note, curve."""
    text = driver.execute_script(
        """
        const page = (name) => Bokeh.documents[0].get_model_by_name(name);
        const figure = page("gantt"), curve = page("curve");
        const drawn = (plot, name) => plot.renderers.find((each) => each.name === name);
        const data = (plot, name) => drawn(plot, name).data_source.data;
        const there = (values) => [...values].filter((value) => !Number.isNaN(value));
        const bars = figure.renderers.filter((each) => (each.name ?? "").startsWith("bars "));
        const ends = bars.map((bar) => [bar.name.slice(5), there(bar.data_source.data.right)]);
        const legend = figure.below.find((each) => each.type === "Legend");
        const cells = document.createElement("div");
        cells.innerHTML = page("numbers").text;
        const table = [...cells.querySelectorAll("tr")].map(
          (row) => [...row.cells].map((cell) => cell.textContent));
        return JSON.stringify({
          title: figure.title.text.text,
          rows: [...figure.left[0].major_label_overrides.values()].filter(Boolean),
          idle: [...figure.right[0].major_label_overrides.values()].filter(Boolean),
          bars: Object.fromEntries(ends),
          limit: data(figure, "lower bound").x[0],
          last: figure.x_range.end,
          numbers: Object.fromEntries(table.map(([words, ...values]) => [words, values])),
          from: cells.querySelector("p").textContent,
          note: page("note").text,
          ticks: [...curve.below[0].major_label_overrides.values()].map((each) => each.text),
          line: [...curve.renderers[0].data_source.data.y],
          mark: [data(curve, "mark").x[0], data(curve, "mark").y[0]],
          legend: legend.items.map((item) => item.label.value),
        });
        """
    )
    return json.loads(text)


@needs_browser
def test_chart_numbers_and_curve_follow_the_sliders(config):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    path = write(config)
    with browser() as driver:
        load(driver, path)
        at_first = seen(driver)
        assert at_first["title"].startswith("two < three: gpipe, p = 2, m = 2, 9 ms")
        assert at_first["rows"] == ["rank 0", "rank 1"]
        assert at_first["bars"] == {"F": [1, 2, 2, 3], "B": [7, 9, 5, 7], "I": [], "W": []}
        assert at_first["numbers"]["makespan"] == ["9 ms", "9 ms", "0"]
        assert at_first["from"] == "compared with run.schedule = gpipe; run.microbatches = 2"
        assert at_first["line"] == [9, 7]
        assert at_first["mark"] == [0, 9]
        assert at_first["limit"] == 9
        assert "lower bound: 9 ms" in at_first["legend"]

        set_slider(driver, "run.microbatches", 1)
        later = seen(driver)
        assert later["numbers"]["makespan"] == ["15 ms", "9 ms", "+6 ms, +66.7%"]
        assert later["numbers"]["micro-batches"] == ["4", "2", ""]
        assert later["numbers"]["bubble fraction"] == ["20.00%", "33.33%", "-13.33 points"]
        assert len(later["bars"]["B"]) == 8
        assert later["line"] == [15, 13]
        assert later["last"] == at_first["last"] == pytest.approx(15, rel=0.01)

        # By keyboard: the schedule's slider.
        handle = driver.execute_script(
            "const slider = Bokeh.documents[0].get_model_by_name('run.schedule');"
            "const handle = Bokeh.index.find_one(slider).shadow_el.querySelector('.noUi-handle');"
            "handle.focus(); return handle;"
        )
        assert handle is not None
        ActionChains(driver).send_keys(Keys.ARROW_RIGHT).perform()
        other = seen(driver)
        assert "zb_h1, p = 2, m = 4, 13 ms" in other["title"]
        assert [len(other["bars"][kind]) for kind in "FBIW"] == [8, 0, 8, 8]
        assert other["mark"] == [1, 13]
        assert other["legend"] != at_first["legend"]

        driver.execute_script(
            "const button = Bokeh.documents[0].get_model_by_name('compare');"
            "Bokeh.index.find_one(button).shadow_el.querySelector('button').click();"
        )
        assert seen(driver)["from"] == "compared with run.schedule = zb_h1; run.microbatches = 4"
        set_slider(driver, "run.schedule", 0)
        assert seen(driver)["numbers"]["makespan"] == ["15 ms", "13 ms", "+2 ms, +15.4%"]
        assert complaints(driver) == []
        assert requests(driver) == [path.resolve().as_uri()]


@needs_browser
def test_texts_are_no_formulas(config):
    plain, formula = (
        write(config, {"sweep.axes": {"title": [title, "other"]}, "source": title}, f"{name}.html")
        for name, title in (("plain", "plain"), ("formula", "$$x^2$$ cost"))
    )
    assert formula.stat().st_size < plain.stat().st_size + 1000  # what draws formulas takes 2 MB
    with browser() as driver:
        load(driver, formula)
        shown = seen(driver)
        assert shown["title"].startswith("$$x^2$$ cost: 1f1b, p = 2")
        assert shown["ticks"] == ["$$x^2$$ cost", "other"]
        assert shown["from"] == "compared with title = $$x^2$$ cost"
        set_slider(driver, "title", 1)
        assert seen(driver)["title"].startswith("other: 1f1b")
        assert complaints(driver) == []
        assert requests(driver) == [formula.resolve().as_uri()]


@needs_browser
@pytest.mark.parametrize("width", [700, 1000, 1900])
def test_all_of_it_is_in_the_window(config, width):
    path = write(config, {"title": "a title so long that it is cut after some words"})
    with browser() as driver:
        driver.set_window_size(width, 900)
        load(driver, path)
        wait_for(driver, FITS)


@needs_browser
def test_points_of_other_ranks_and_points_that_fail(config):
    values = {
        "sweep.axes": {
            "stages.count": [2, 4],
            "run.microbatches": [2, 2.5],
        },
        "run.schedule": "1f1b",
    }
    path = write(config, values)
    with browser() as driver:
        load(driver, path)
        assert seen(driver)["rows"] == ["rank 0", "rank 1"]
        set_slider(driver, "stages.count", 1)
        more = seen(driver)
        assert more["rows"] == [f"rank {rank}" for rank in range(4)]
        assert more["idle"] == ["60% idle"] * 4
        assert len(more["bars"]["F"]) == 8
        set_slider(driver, "run.microbatches", 1)
        failed = seen(driver)
        assert failed["title"] == "this point cannot be run"
        assert "2.5 is not a whole number from 1 to 10^6" in failed["note"]
        assert failed["rows"] == failed["bars"]["F"] == []
        assert failed["numbers"]["makespan"] == ["–", "9 ms", ""]
        assert failed["mark"][1] is None
        set_slider(driver, "run.microbatches", 0)
        assert seen(driver) == more
        assert complaints(driver) == []
