"""Pages with Gantt charts: what they show, by hand; what the command line makes of them."""

import math
import re

import numpy as np
import pytest
from bokeh.models import Range1d

import pipesim as ps
from pipesim.base import files
from pipesim.cli import main
from pipesim.plot.gantt.chart import BAR
from pipesim.plot.gantt.legend import CLOSED_FORM, LOWER_BOUND
from pipesim.plot.page.chart import draw_chart
from pipesim.plot.page.data import picture_of
from pipesim.plot.page.summary import summary_table
from pipesim.plot.page.window import choose_window
from pipesim.plot.style import KIND_WORDS

# Two equal stages, two micro-batches, 1F1B, half a millisecond from rank to rank:
#
#   rank 0 | F0 F1 -      - B0 B0 - B1 B1
#   rank 1 |     F0 B0 B0 F1 B1 B1
PIPE = ps.Pipeline.from_costs(
    [1, 1], [2, 2], latency_ms=0.5, stash_bytes=10, param_bytes=100, title="two", source="by hand"
)
RUN = ps.simulate(PIPE, "1f1b", 2)


def picture(run=RUN, asked=None, most=1000):
    return picture_of(run, "title", choose_window([run], run.makespan, asked, most))


def rows(columns, *names):
    return list(zip(*(np.asarray(columns[name]).tolist() for name in names), strict=True))


def test_bars_and_what_is_told_of_them():
    drawn = picture()
    assert list(drawn.bars) == ["F", "B"]
    told = ("stage", "microbatch", "left", "right", "ready", "waited", "source", "source_rank")
    assert rows(drawn.bars["F"], *told) == [
        (0, 0, 0, 1, 0, 0, -1, -1),
        (0, 1, 1, 2, 0, 0, -1, -1),
        (1, 0, 1.5, 2.5, 1.5, 1.5, 0, 0),
        (1, 1, 4.5, 5.5, 2.5, 0, -1, -1),
    ]
    assert rows(drawn.bars["B"], *told) == [
        (0, 0, 5, 7, 5, 3, 1, 1),
        (0, 1, 8, 10, 8, 1, 1, 1),
        (1, 0, 2.5, 4.5, 2.5, 0, -1, -1),
        (1, 1, 5.5, 7.5, 5.5, 0, -1, -1),
    ]
    for columns in drawn.bars.values():
        rank, half = columns["rank"], np.float32(BAR / 2)
        assert columns["top"] == pytest.approx(rank - half)
        assert columns["bottom"] == pytest.approx(rank + half)
        assert columns["colour"].shape == (4, 4)
    assert drawn.shares == ["40% idle", "40% idle"]


def test_long_times_are_no_powers_of_ten():
    run = ps.simulate(ps.Pipeline.from_costs([39_382_712.0], [3.0]), "1f1b", 1)
    table = summary_table([run])
    assert ">39382715 ms<" in table
    assert "e+" not in table
    chart = draw_chart(picture(run), Range1d(0, 1))
    labels = [item.label.value for item in chart.figure.legend[0].items]
    assert f"{LOWER_BOUND}: 39382715 ms" in labels


def test_the_legend_has_no_kind_without_a_bar():
    for run, asked, kinds in [
        (RUN, None, ["forward (F)", "backward (B)"]),
        (RUN, (0.0, 2.0), ["forward (F)"]),
        (RUN, (8.0, 9.0), ["backward (B)"]),
    ]:
        chart = draw_chart(picture(run, asked), Range1d(0, 1))
        labels = [item.label.value for item in chart.figure.legend[0].items]
        assert [label for label in labels if label in KIND_WORDS.values()] == kinds


def test_idle_time_transfers_limits_and_path():
    drawn = picture()
    assert {cause: rows(c, "left", "right") for cause, c in drawn.idle.items()} == {
        "fill": [(0, 1.5)],
        "wait_gradient": [(2, 5), (7, 8)],
        "drain": [(7.5, 10)],
    }
    assert sorted(rows(drawn.messages, "x0", "y0", "x1", "y1", "microbatch")) == [
        (1, 0, 1.5, 1, 0),
        (2, 0, 2.5, 1, 1),
        (4.5, 1, 5, 0, 0),
        (7.5, 1, 8, 0, 1),
    ]
    assert drawn.limits == {CLOSED_FORM: pytest.approx(9), LOWER_BOUND: RUN.lower_bound}
    starts = [start for start, _ in rows(drawn.path, "left", "right")]
    assert starts == [0, 1.5, 2.5, 4.5, 5.5, 8]
    assert (drawn.begin, drawn.end) == (0, 10)


def test_what_ranks_hold_over_time():
    held = picture().held
    assert list(held) == ["in flight", "bytes"]
    first, second = held["in flight"].curves
    assert rows(first, "time", "held") == [(0, 1), (1, 2), (7, 1), (10, 1)]
    changes = [held for held in rows(second, "time", "held") if held[0] not in (4.5, 5.5)]
    assert changes == [(0, 0), (1.5, 1), (7.5, 0), (10, 0)]
    # Parameters and as many bytes of gradients, and ten a micro-batch.
    state = RUN.memory.total.min()
    assert {value - state for _, value in rows(held["bytes"].curves[0], "time", "held")} == {10, 20}


def test_the_chart_reaches_to_what_the_run_is_measured_against():
    fast = ps.simulate(ps.Pipeline.from_costs([1.5, 1, 1, 1], [3, 2, 2, 2]), "1f1b", 4)
    assert fast.makespan == 22.5
    assert picture(fast).end == pytest.approx(23.625)  # equal stages take longer


@pytest.mark.parametrize(
    ("asked", "most", "shown", "notice"),
    [
        (None, 8, 8, ""),
        (None, 5, 5, "holds 5 ops, the run has 8: shown are 0 to 5 of 10 ms; choose .* --window"),
        ((2.0, 5.0), 8, 3, "Shown are 2 to 5 of 10 ms"),
        ((2.5, 1000.0), 3, 3, "shown are 2.5 to 5.5 of 10 ms"),
        ((7.6, 1e9), 8, 1, "Shown are 7.6 to 10 of 10 ms"),
        ((7.5, 8.0), 8, 0, "Shown are 7.5 to 8 of 10 ms"),
    ],
)
def test_a_window_cuts_out_a_part(asked, most, shown, notice):
    window = choose_window([RUN], RUN.makespan, asked, most)
    assert re.search(notice, window.notice)
    drawn = picture(asked=asked, most=most)
    assert sum(len(columns["left"]) for columns in drawn.bars.values()) == shown
    for curve in drawn.held["in flight"].curves:
        assert (curve["time"][0], curve["time"][-1]) == (window.begin, window.end)
    assert drawn.held["in flight"].peaks == ["2", "1"]  # of the whole run
    assert drawn.held["in flight"].highest == 2


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((10, 11), "window 10 to 11 ms: all is over at 10 ms"),
        ((5, 2), "window 5 to 2 ms: give begin and end, 0 <= begin < end"),
        ((-5, -2), "0 <= begin < end"),
        ((0, math.inf), "0 <= begin < end"),
        ((math.nan, 5), "0 <= begin < end"),
    ],
)
def test_a_window_that_is_none_is_refused(tmp_path, asked, message):
    with pytest.raises(ValueError, match=message):
        ps.plot.write_html(RUN, tmp_path / "page.html", window=asked)
    assert not (tmp_path / "page.html").exists()


def test_runs_beside_each_other_are_cut_at_the_same_time():
    # Of GPipe 4 ops start before 2.5, of 1F1B likewise; the ninth of both starts then.
    runs = [RUN, ps.simulate(PIPE, "gpipe", 2)]
    window = choose_window(runs, 10.0, None, 8)
    starts = np.sort(np.concatenate([run.spans.start for run in runs]))
    assert window.end == starts[8]
    assert window.notice.startswith("A page holds 8 ops, these 2 runs have 16: shown are 0 to ")
    assert {picture_of(run, "", window).end for run in runs} == {window.end}


def test_a_run_that_has_ended_before_the_window_is_empty_beside_one_that_goes_on():
    window = choose_window([RUN, RUN], 20.0, (12.0, 18.0))
    assert all(len(columns["left"]) == 0 for columns in picture_of(RUN, "", window).bars.values())


def test_a_step_goes_on_after_its_ops(tmp_path):
    training = ps.Training(replicas=2, optimizer_ms=5.0)
    step = ps.simulate_step(PIPE, "1f1b", 2, training=training)
    assert step.step_ms == pytest.approx(15.0, abs=0.1)
    ps.plot.write_html(step, tmp_path / "page.html", window=(11.0, 1000.0))
    assert f"Shown are 11 to {step.step_ms:.6g} of" in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.parametrize("name", ["dualpipe", "seq1f1b", "interleaved", "zb_h1", "gpipe"])
def test_every_op_is_a_bar(name):
    schedule = ps.build_schedule(name, 4, 8)
    costs = {"forward": 1.0, "input_grad": 1.0, "weight_grad": 0.5, "latency_ms": 0.1}
    pipe = ps.Pipeline.from_costs(
        **costs, stages=schedule.stages, placement=schedule.placement, overlap_ms=2.0
    )
    run = ps.simulate(pipe, schedule)
    drawn = picture(run, most=10_000)
    assert sum(len(columns["left"]) for columns in drawn.bars.values()) == len(run.schedule)


def test_what_takes_no_time_at_all():
    still = ps.simulate(ps.Pipeline.from_costs(0.0, 0.0, stages=2), "1f1b", 2)
    drawn = picture(still)
    assert (drawn.begin, drawn.end) == (0, 0)
    assert drawn.idle == {}
    assert sum(len(columns["left"]) for columns in drawn.bars.values()) == 8


def test_the_table_has_a_column_a_run_and_the_step():
    other = ps.simulate(PIPE, "gpipe", 2)
    table = summary_table([RUN, other])
    assert re.findall(r">(1f1b|gpipe)<", table) == ["1f1b", "gpipe"]
    assert "10 ms" in table
    assert "40.00%" in table
    step = ps.simulate_step(PIPE, "1f1b", 2, training=ps.Training(replicas=2))
    assert ">replicas<" in summary_table(step.runs[:1], step)


def run_page(tmp_path, *arguments):
    page = tmp_path / "page.html"
    stages = ["--forward", "1,1", "--backward", "2,2", "--microbatches", "2"]
    code = main(["run", "--schedule", "1f1b", *stages, "--gantt", str(page), *arguments])
    return code, page


def test_a_page_is_one_file_that_needs_no_network(tmp_path):
    code, page = run_page(tmp_path)
    assert code == 0
    text = page.read_text("utf-8")
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=.?https?:", text)
    assert "pick(charts, choice)" in text


def test_pages_say_how_to_use_them_and_name_the_inflation(tmp_path):
    _, page = run_page(tmp_path)
    text = page.read_text("utf-8")
    assert "hover: what an op waited for; click: follow its micro-batch" in text
    assert "inflation (makespan / equal stages)" in text


def test_what_is_left_out_of_a_comparison_stands_on_its_page(tmp_path, capsys):
    config = tmp_path / "c.toml"
    config.write_text(
        "[run]\nmicrobatches = 2\n[stages]\ncount = 2\nforward_ms = 1\nbackward_ms = 2\n"
    )
    page = tmp_path / "page.html"
    names = ["--schedules", "1f1b,gpipe,zb_h1"]
    assert main(["compare", str(config), *names, "--gantt", str(page)]) == 0
    line = "zb_h1 does not fit: splits the backward"
    assert line in capsys.readouterr().out
    assert line in page.read_text("utf-8")


def test_the_same_run_gives_the_same_page_twice(tmp_path):
    pages = []
    for number in range(2):
        ps.plot.write_html(RUN, tmp_path / f"{number}.html")
        text = (tmp_path / f"{number}.html").read_text("utf-8")
        pages.append(re.sub(r"\bp\d{4}\b", "p", text))  # Bokeh counts its models on
    assert pages[0] == pages[1]


@pytest.mark.parametrize("text", ["$$x^2$$ cost", r"\(x\) and \[y\]"])
def test_texts_are_no_formulas(tmp_path, text):
    sizes = []
    for number, given in enumerate(("plain", text)):
        pipe = ps.Pipeline.from_costs([1, 1], [2, 2], title=given, source=given)
        ps.plot.write_html(ps.simulate(pipe, "1f1b", 2), tmp_path / f"{number}.html")
        sizes.append((tmp_path / f"{number}.html").stat().st_size)
    assert sizes[1] < sizes[0] + 1000  # what draws formulas takes 2 MB


@pytest.mark.parametrize("name", ["page.png", "page", ".html"])
def test_a_page_has_the_ending_of_one(tmp_path, name):
    with pytest.raises(ValueError, match=r"a page is written as \.html"):
        ps.plot.write_html(RUN, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_page_of_no_runs_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^no runs to draw$"):
        ps.plot.write_html([], tmp_path / "page.html")


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ("5-9", "--window 5-9: is not BEGIN:END in ms, such as 0:250.5"),
        ("9:5", "is not BEGIN:END"),
        ("0:nan", "is not BEGIN:END"),
        ("-1:5", "is not BEGIN:END"),
        ("50:60", "window 50 to 60 ms: all is over at 9 ms"),
    ],
)
def test_a_wrong_window_says_what_is_wrong(tmp_path, capsys, window, message):
    code, page = run_page(tmp_path, f"--window={window}")
    assert code == 2
    assert message in capsys.readouterr().err
    assert not page.exists()


def test_a_window_is_for_pages(tmp_path, capsys):
    stages = ["--forward", "1,1", "--backward", "2,2", "--microbatches", "2"]
    assert main(["run", "--schedule", "1f1b", *stages, "--window", "0:5"]) == 2
    assert "give --gantt FILE.html, too" in capsys.readouterr().err


def test_without_bokeh_the_extra_is_named_before_anything_is_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    code, page = run_page(tmp_path)
    assert code == 2
    error = capsys.readouterr().err
    assert f"--gantt {page}: needs bokeh; pip install 'pipesim[html]'" in error
