"""Pages with Gantt charts: what they show, by hand; what the command line makes of them."""

import re

import numpy as np
import pytest
from bokeh.models import Range1d

import pipesim as ps
from pipesim.cli import main
from pipesim.io import files
from pipesim.plot.gantt_chart import BAR
from pipesim.plot.html_chart import draw_chart
from pipesim.plot.html_data import CLOSED_FORM, LOWER_BOUND, choose_window, picture_of
from pipesim.plot.html_summary import summary_table
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
    return picture_of(run, "title", choose_window(run, asked, most))


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
        (ps.simulate(ps.Pipeline.from_costs(0.0, 0.0, stages=2), "1f1b", 2), None, []),
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
        ((7.5, 8.0), 8, 0, "Shown are 7.5 to 8 of 10 ms"),
    ],
)
def test_a_window_cuts_out_a_part(asked, most, shown, notice):
    window = choose_window(RUN, asked, most)
    assert re.search(notice, window.notice)
    drawn = picture(asked=asked, most=most)
    assert sum(len(columns["left"]) for columns in drawn.bars.values()) == shown
    for curve in drawn.held["in flight"].curves:
        assert (curve["time"][0], curve["time"][-1]) == (window.begin, window.end)
    assert drawn.held["in flight"].peaks == ["2", "1"]  # of the whole run
    assert drawn.held["in flight"].highest == 2


def test_a_window_behind_the_end_is_refused():
    with pytest.raises(ValueError, match="window 10 to 11 ms: the run ends at 10 ms"):
        choose_window(RUN, (10, 11))


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


def test_the_same_run_gives_the_same_page_twice(tmp_path):
    pages = []
    for number in range(2):
        ps.plot.write_html(RUN, tmp_path / f"{number}.html")
        text = (tmp_path / f"{number}.html").read_text("utf-8")
        pages.append(re.sub(r"\bp\d{4}\b", "p", text))  # Bokeh counts its models on
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ("5-9", "--window 5-9: is not BEGIN:END in ms, such as 0:250.5"),
        ("9:5", "is not BEGIN:END"),
        ("0:nan", "is not BEGIN:END"),
        ("-1:5", "is not BEGIN:END"),
        ("50:60", "the run ends at 9 ms"),
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
