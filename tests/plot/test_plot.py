"""Pictures by their structure: bars, extents, labels, and that nothing is shown or saved."""

import dataclasses
import io
import re
from importlib.resources import files
from itertools import pairwise
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from PIL import Image

import pipesim as ps
from pipesim.plot.gantt.chart import BAR, GAP
from pipesim.plot.gantt.titles import saved_text
from pipesim.plot.style import (
    END_STYLES,
    IDLE_LOOKS,
    IDLE_STYLES,
    KIND_COLOURS,
    LAST_CHUNK,
    MEMORY_STYLES,
)
from pipesim.plot.titles import own_title
from pipesim.run.idle import CAUSES, IDLE_CAUSES


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def run():
    pipe = ps.Pipeline.from_costs([1, 1, 1, 2], [2, 2, 2, 4], stash_bytes=10**9, title="mine")
    return ps.simulate(pipe, "1f1b", 8)


def bars(ax, colour):
    """Return the boxes of one colour as rows (left, right, low, high)."""
    boxes = []
    for collection in ax.collections:
        faces = collection.get_facecolor()
        if isinstance(collection, PolyCollection) and np.array_equal(faces[:1], [to_rgba(colour)]):
            for path in collection.get_paths():
                (left, low), (right, high) = path.vertices.min(0), path.vertices.max(0)
                boxes.append((left, right, low, high))
    return np.array(boxes)


def test_a_bar_an_op_from_its_start_to_its_end(run):
    ax = ps.plot.gantt(run)
    for kind in (ps.Kind.F, ps.Kind.B):
        drawn = bars(ax, KIND_COLOURS[kind.name])
        ops = run.schedule.kind == kind
        assert len(drawn) == ops.sum() == 32
        np.testing.assert_array_equal(np.sort(drawn[:, 0]), np.sort(run.spans.start[ops]))
        np.testing.assert_array_equal(np.sort(drawn[:, 1]), np.sort(run.spans.end[ops]))
        rows = np.rint(drawn[:, 2:].mean(axis=1)).astype(int)
        assert sorted(rows) == sorted(run.schedule.rank[ops])


def test_one_collection_a_kind_whatever_the_number_of_ops():
    big = ps.simulate(ps.Pipeline.from_costs(1.0, 2.0, stages=8), "1f1b", 256)
    ax = ps.plot.gantt(big)
    assert len(ax.collections) == 2 + len(IDLE_STYLES)


def test_idle_time_is_shaded_by_its_cause(run):
    ax = ps.plot.gantt(run)
    by_hatch = {c.get_hatch(): c for c in ax.collections if isinstance(c, PolyCollection)}
    boxes = by_hatch[IDLE_STYLES["drain"][1]].get_paths()
    drain = [float(np.ptp(path.vertices[:, 0])) for path in boxes]
    assert drain == run.ranks["drain"].tolist()
    assert IDLE_STYLES["wait_gradient"][1] in by_hatch


def test_the_critical_path_is_outlined(run):
    ax = ps.plot.gantt(run, critical_path=True)
    path = run.critical_path
    outlines, lines = ax.collections[-2:]
    assert outlines.get_edgecolor().tolist() == [list(to_rgba("black"))]
    assert not outlines.get_facecolor().size  # what is below stays to be seen
    boxes = [(*p.vertices.min(0), *p.vertices.max(0)) for p in outlines.get_paths()]
    assert [(left, right) for left, _, right, _ in boxes] == list(
        zip(path.start, path.end, strict=True)
    )
    assert [round((low + high) / 2) for _, low, _, high in boxes] == path["rank"].tolist()
    # It goes down the ranks once and up again once.
    assert len(lines.get_segments()) == 6
    assert "critical path" in [text.get_text() for text in ax.get_legend().get_texts()]
    plain = ps.plot.gantt(run)
    assert "critical path" not in [text.get_text() for text in plain.get_legend().get_texts()]


def test_labels_lines_and_legend(run):
    ax = ps.plot.gantt(run)
    assert ax.get_xlabel() == "time [ms]"
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [f"rank {r}" for r in range(4)]
    texts = [text.get_text() for text in ax.texts]
    assert "58% idle" in texts
    title = "mine: 1f1b, p = 4, m = 8, 57 ms, 1.382 x equal stages, bubble 47.4%"
    assert f"{title} (closed form 27.3%)" in texts
    assert {"0", "7"} <= set(texts)
    dashed, dotted = (next(l for l in ax.lines if l.get_linestyle() == s) for s in ("--", ":"))
    assert dashed.get_xdata()[0] == pytest.approx(41.25)  # (8 + 3) x 3.75
    assert dotted.get_xdata()[0] == 57
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "equal stages (closed form): 41.25 ms" in legend
    assert "lower bound: 57 ms" in legend
    assert "queue full" not in legend


def test_several_runs_stand_under_each_other_on_one_axis(run):
    other = ps.simulate(run.pipeline, "gpipe", 8)
    ax = ps.plot.gantt([run, other])
    assert len(ax.get_yticklabels()) == 8
    assert len(bars(ax, KIND_COLOURS["F"])) == 64
    assert ax.get_xlim() == (0, pytest.approx(57, rel=0.01))
    low, high = ax.get_ylim()
    assert low > high  # rank 0 on top


def latent(**more):
    """Return four equal stages, F = 1, B = 2, with half a millisecond a hop."""
    return ps.Pipeline.from_costs(1.0, 2.0, stages=4, latency_ms=0.5, **more)


def test_what_a_run_saves_beside_the_slowest_of_the_same_work():
    # gpipe (m+p-1)(F+B) + 2(p-1)c = 33 + 3; 1f1b 33 + 2c[(p-1)+(m-1)-2] = 33 + 8; of two
    # batches, 57 + 2c[3+15-4], and forwards alone, 11 + 3c, nothing is said.
    names = ("gpipe", "1f1b", "pipedream", "gpipe_forward")
    runs = [ps.simulate(latent(), name, 8) for name in names]
    assert [run.makespan for run in runs] == [36, 41, 71, 12.5]
    said = [saved_text(run, runs) for run in runs]
    assert said == ["5 ms saved (12.2%)", None, None, None]
    assert saved_text(runs[0], runs[:1]) is None
    halves = ps.simulate(latent(), "terapipe", 8)  # (2m+p-1)F/2 + 3c = 11, beside 12.5
    assert saved_text(halves, [*runs, halves]) == "1.5 ms saved (12.0%)"


def test_an_arrow_leads_from_the_end_of_a_run_to_that_of_the_slowest():
    runs = [ps.simulate(latent(title="mine"), name, 8) for name in ("gpipe", "1f1b")]
    ax = ps.plot.gantt(runs)
    (arrow,) = ax.patches
    (left, row), (right, _) = arrow.get_path().vertices[0], arrow.get_path().vertices[2]
    assert (left, right, row) == pytest.approx((36, 41, 1.5), abs=0.05)
    texts = [text.get_text() for text in ax.texts]
    assert "5 ms saved (12.2%)" in texts
    assert "mine\ngpipe, p = 4, m = 8, 36 ms, 1.091 x equal stages, bubble 33.3%" in "".join(texts)
    assert sum("mine" in text for text in texts) == 1  # what all have in common stands once
    step = ps.simulate_step(latent(), "1f1b", 8, training=ps.Training(replicas=2, speed=(1, 0.5)))
    assert not ps.plot.gantt(step).patches  # replicas are no rivals


def drawn_texts(ax):
    """Return the boxes of all texts that are seen, (left, low, right, high) in pixels."""
    figure = ax.figure
    figure.canvas.draw()
    texts = [*ax.texts, *ax.get_yticklabels(), ax.xaxis.label, *ax.get_legend().get_texts()]
    until = ax.get_xlim()[1]
    texts += [label for label in ax.get_xticklabels() if label.get_position()[0] <= until]
    seen = [text for text in texts if text.get_visible() and text.get_text()]
    return {t: t.get_window_extent().extents for t in seen}


def compared(title):
    costs = {"input_grad": 1.0, "weight_grad": 0.7, "latency_ms": 0.1}
    pipe = ps.Pipeline.from_costs([1.0] * 7 + [1.8], ranks=4, title=title, **costs)
    names = ("1f1b", "interleaved", "zb_h1", "dualpipe", "zb_v")
    merged = {name: pipe if name in ("interleaved", "zb_v") else pipe.regroup(1) for name in names}
    return [ps.simulate(merged[name], name, 8) for name in names]


CHARTS = {
    "1f1b": lambda: ps.simulate(ps.Pipeline.from_costs([1, 1, 1, 2], [2, 2, 2, 4]), "1f1b", 8),
    "interleaved": lambda: ps.simulate(
        ps.Pipeline.from_costs(1.0, 2.0, stages=16, ranks=8, title="x" * 200), "interleaved", 32
    ),
    "32 ranks": lambda: ps.simulate(ps.Pipeline.from_costs(1.0, 2.0, stages=32), "1f1b", 64),
    "dualpipe": lambda: ps.simulate(
        ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=0.7, stages=8), "dualpipe", 20
    ),
    "a step": lambda: ps.simulate_step(
        latent(title="mine"), "1f1b", 8, training=ps.Training(replicas=2, optimizer_ms=1)
    ),
    "five": lambda: compared("mine"),
    "five with titles of their own": lambda: [
        dataclasses.replace(
            run, pipeline=dataclasses.replace(run.pipeline, title=f"{n}" + "W" * 40)
        )
        for n, run in enumerate(compared(""))
    ],
}


@pytest.mark.parametrize("name", CHARTS)
def test_no_text_lies_on_another_or_leaves_the_figure(name):
    ax = ps.plot.gantt(CHARTS[name](), critical_path=name == "1f1b")
    boxes = drawn_texts(ax)
    extents = np.array(list(boxes.values()))
    assert (extents >= 0).all()
    assert (extents[:, 2:] <= ax.figure.bbox.extents[2:]).all()
    low, high = extents[:, :2], extents[:, 2:]
    common = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)
    overlap = np.triu((common > 0.5).all(axis=2), 1)
    texts = [text.get_text() for text in boxes]
    assert not [(texts[a], texts[b]) for a, b in zip(*np.nonzero(overlap), strict=True)]


def test_a_note_that_could_not_be_read_is_left_out():
    runs = [ps.simulate(latent(), name, 8) for name in ("gpipe", "1f1b")]
    _, axes = plt.subplots(1, 4)
    ax = ps.plot.gantt(runs, ax=axes[0])
    (note,) = [text for text in ax.texts if "saved" in text.get_text()]
    assert not note.get_visible()
    assert len(ax.patches) == 1


def test_numbers_on_a_line_keep_it_off(run):
    ax = ps.plot.gantt(run)
    closed = next(line for line in ax.lines if line.get_linestyle() == "--").get_xdata()[0]
    numbers = [text for text in ax.texts if text.get_text().isdigit()]
    (behind,) = [text for text in numbers if text.get_bbox_patch() is not None]
    assert behind.get_position()[0] == pytest.approx(closed, abs=0.5)
    assert behind.get_bbox_patch().get_facecolor() == to_rgba(KIND_COLOURS["F"])


def test_a_step_shows_its_replicas_and_what_comes_at_the_end():
    pipe = ps.Pipeline.from_costs([1, 1], [2, 2], param_bytes=[1_000_000, 3_000_000])
    training = ps.Training(
        replicas=2, zero=1, bandwidth_gb_s=1.0, optimizer_ms=0.5, speed=(1.0, 0.5)
    )
    ax = ps.plot.gantt(ps.simulate_step(pipe, "1f1b", 2, training=training))
    assert [text.get_text() for text in ax.get_yticklabels()] == ["rank 0", "rank 1"] * 2
    assert ax.get_xlim() == (0, pytest.approx(20.5, rel=0.01))
    by_hatch = {c.get_hatch(): c for c in ax.collections if len(c.get_paths())}
    reduced = by_hatch[END_STYLES["REDUCE"][1]].get_paths()
    drawn = sorted((*path.vertices.min(0), *path.vertices.max(0)) for path in reduced)
    second = 2 + GAP  # the row of rank 0 of replica 1
    assert [(left, right) for left, _, right, _ in drawn] == [(14, 15.5)] * 2 + [(18, 18.5)] * 2
    middles = [(low + high) / 2 for _, low, _, high in drawn]
    assert middles == pytest.approx([1, second + 1, 0, second])
    assert len(bars(ax, END_STYLES["OPTIMIZER"][0])) == 4
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {"gradients reduced", "optimizer", "parameters gathered"} < set(legend)
    titles = [text.get_text() for text in ax.texts if "replica" in text.get_text()]
    assert titles == [
        "1f1b, p = 2, m = 2, 2 replicas, step 20.5 ms\n"
        "replica 0: 9 ms, bubble 33.3% (closed form 33.3%)",
        "replica 1: 18 ms, bubble 33.3% (closed form 33.3%)",
    ]


def test_a_reduction_beside_the_compute_is_a_strip_at_the_foot_of_its_row():
    pipe = ps.Pipeline.from_costs([1, 1], [2, 2], ranks=1, param_bytes=[0, 3_000_000])
    order = ps.Schedule.from_orders(["0F0 1F0 1B0 0B0"], placement=pipe.placement)
    training = ps.Training(replicas=2, bandwidth_gb_s=1.0)
    ax = ps.plot.gantt(ps.simulate_step(pipe, order, training=training))
    reduced = [c for c in ax.collections if c.get_hatch() == END_STYLES["REDUCE"][1]]
    boxes = [p.vertices for c in reduced for p in c.get_paths()]
    extents = [(b[:, 0].min(), b[:, 0].max(), np.ptp(b[:, 1])) for b in boxes]
    strip = pytest.approx(0.3 * BAR)
    assert extents == [(4, 6, strip)] * 2 + [(6, 7, pytest.approx(BAR))] * 2


def test_numbers_are_left_out_where_bars_are_too_narrow():
    wide = ps.simulate(ps.Pipeline.from_costs(1.0, 2.0, stages=32), "1f1b", 512)
    texts = [text.get_text() for text in ps.plot.gantt(wide).texts]
    assert len(texts) == 1 + 32  # the title, and the idle share of every rank


def test_a_regular_order_of_narrow_bars_has_no_bands():
    pipe = ps.Pipeline.from_costs([1, 1, 1, 2], [2, 2, 2, 4])
    ax = ps.plot.gantt(ps.simulate(pipe, "1f1b", 3000, engine="replay"))
    canvas = ax.get_figure().canvas
    canvas.draw()
    picture = np.asarray(canvas.buffer_rgba())[::-1, :, :3].mean(axis=2)
    for rank in range(4):
        left, low = ax.transData.transform((200, rank + 0.4)).astype(int)
        right, high = ax.transData.transform((8800, rank - 0.4)).astype(int)  # before the line
        columns = picture[low:high, left:right].mean(axis=0)
        stretches = [stretch.mean() for stretch in np.array_split(columns, 8)]
        assert np.ptp(stretches) < 2  # of 255; snapped to whole pixels it is 11


def test_all_lines_lie_inside_the_axes():
    # Unequal stages that beat equal ones: the closed form's makespan lies beyond the run.
    fast = ps.simulate(ps.Pipeline.from_costs([1.5, 1, 1, 1], [3, 2, 2, 2]), "1f1b", 4)
    ax = ps.plot.gantt(fast)
    assert fast.makespan == 22.5
    ends = [line.get_xdata()[0] for line in ax.lines]
    assert ends == [pytest.approx(23.625), 22.5]
    assert max(ends) < ax.get_xlim()[1]


def test_the_source_of_the_numbers_stands_below():
    pipe = ps.Pipeline.from_costs([1, 1], [2, 2], source="measured on a rainy day")
    ax = ps.plot.gantt(ps.simulate(pipe, "1f1b", 4))
    assert "measured on a rainy day" in [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("title", ["x" * 200, "a $x_{$ b", "cost $5 to $6", "训练", "two\nlines"])
def test_titles_of_any_kind_leave_the_chart_alone(tmp_path, title):
    pipe = ps.Pipeline.from_costs([1, 1], [2, 2], title=title, source="$x_{$")
    ax = ps.plot.gantt(ps.simulate(pipe, "1f1b", 4))
    ps.plot.save(ax, tmp_path / "g.png")
    assert ax.get_position().width > 0.7


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("a" * 60, "a" * 45 + "..."),
        ("流" * 60, "流" * 45 + "..."),
        ("a" * 48, "a" * 48),
        ("two\n lines", "two lines"),
        ("a" * 44 + " b c d e f", "a" * 44 + "..."),
        (" ", ""),
    ],
)
def test_long_titles_are_cut(title, shown):
    pipe = ps.Pipeline.from_costs([1, 1], [2, 2], title=title)
    assert own_title(ps.simulate(pipe, "1f1b", 4)) == shown


def test_no_runs_are_refused():
    with pytest.raises(ValueError, match=r"^no runs to draw$"):
        ps.plot.gantt([])


def test_bars_of_a_kind_are_numbered_all_or_not_at_all():
    pipe = ps.Pipeline.from_costs(1.0, 1.0, stages=4)
    run = ps.simulate(pipe, "gpipe", 24)
    texts = [text.get_text() for text in ps.plot.gantt(run).texts]
    for microbatch in range(24):
        assert texts.count(str(microbatch)) == 8


def test_figures_grow_with_ranks_and_not_without_end(run):
    small = ps.plot.gantt(run).figure.get_size_inches()
    many = ps.simulate(ps.Pipeline.from_costs(1.0, 2.0, stages=32), "1f1b", 8)
    large = ps.plot.gantt(many).figure.get_size_inches()
    assert small[1] < large[1] <= 12


def test_an_axes_of_ones_own_is_used_and_returned(run):
    _, axes = plt.subplots(1, 3)
    assert ps.plot.gantt(run, ax=axes[0]) is axes[0]
    assert ps.plot.in_flight(run, ax=axes[1]) is axes[1]
    table = pd.DataFrame(
        {"m": [1, 2], "bubble_fraction": [0.5, 0.3], "closed_form_bubble_fraction": [0.4, 0.2]}
    )
    assert ps.plot.bubble(table, "m", ax=axes[2]) is axes[2]
    assert plt.get_fignums() == [axes[0].figure.number]


def test_empty_time_draws_too():
    ps.plot.gantt(ps.simulate(ps.Pipeline.from_costs(0.0, 0.0, stages=2), "1f1b", 2))


def test_in_flight_shows_the_peaks(run):
    assert [t.get_text() for t in ps.plot.in_flight(run).texts] == ["4", "3", "2", "1"]
    in_bytes = ps.plot.in_flight(run, unit="bytes")
    assert [t.get_text() for t in in_bytes.texts] == ["4 GB", "3 GB", "2 GB", "1 GB"]
    few = ps.Pipeline.from_costs(1.0, 2.0, stages=2, stash_bytes=[1500, 1])
    texts = ps.plot.in_flight(ps.simulate(few, "1f1b", 2), unit="bytes").texts
    assert [text.get_text() for text in texts] == ["3 kB", "1 B"]
    with pytest.raises(ValueError, match="unit = 'apples' is unknown"):
        ps.plot.in_flight(run, unit="apples")


def test_titles_say_what_was_run(run):
    assert ps.plot.in_flight(run).get_title().startswith("mine: 1f1b, p = 4, m = 8: micro-batches")
    sliced = ps.simulate(ps.Pipeline.from_costs(1.0, 2.0, stages=2), "seq1f1b", 4)
    assert ": slices in flight;" in ps.plot.in_flight(sliced).get_title()
    assert ps.plot.memory(run).get_title().startswith("mine: 1f1b, p = 4, m = 8: memory")
    rows = {"schedule": "1f1b", "ranks": 4, "microbatches": [8, 16], "f": [1, 2]}
    table = pd.DataFrame(rows | {"run.microbatches": [8, 16], "makespan_ms": [3.0, 4.0]})
    assert ps.plot.lines(table, "run.microbatches", "makespan_ms").get_title() == "1f1b, p = 4"
    assert ps.plot.heat_map(table, "f", "microbatches", "makespan_ms").get_title() == "1f1b, p = 4"


def test_bubble_draws_one_curve_a_group_and_the_closed_form_once():
    table = pd.DataFrame(
        {
            "m": [1, 2, 1, 2],
            "schedule": ["a", "a", "b", "b"],
            "bubble_fraction": [0.5, 0.3, 0.6, 0.5],
            "closed_form_bubble_fraction": [0.4, 0.2, 0.4, 0.2],
        }
    )
    ax = ps.plot.bubble(table, "m", by=["schedule"])
    labels = [line.get_label() for line in ax.lines]
    assert labels == ["schedule = a", "closed form, equal stages", "schedule = b"]
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), [0.4, 0.2])
    with pytest.raises(ValueError, match="the table has no column 'x'"):
        ps.plot.bubble(table, "x")


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_figure_gives_the_same_bytes(run, tmp_path, ending):
    for number in range(2):
        ps.plot.save(ps.plot.gantt(run), tmp_path / f"{number}.{ending}")
    assert (tmp_path / f"0.{ending}").read_bytes() == (tmp_path / f"1.{ending}").read_bytes()


def test_a_png_of_few_colours_looks_the_same(tmp_path):
    ax = ps.plot.gantt(compared("mine"))
    ps.plot.save(ax, tmp_path / "few.png")
    ax.figure.savefig(tmp_path / "all.png", dpi=150)
    with Image.open(tmp_path / "few.png") as few, Image.open(tmp_path / "all.png") as whole:
        assert few.mode == "P"
        drawn = [np.asarray(picture.convert("RGB"), dtype=int) for picture in (few, whole)]
    assert np.abs(drawn[0] - drawn[1]).max() < 10  # of 255
    sizes = [(tmp_path / name).stat().st_size for name in ("few.png", "all.png")]
    assert sizes[0] < 0.5 * sizes[1]


def test_other_endings_are_refused(run, tmp_path):
    with pytest.raises(ValueError, match=r"is written as \.png, \.svg, \.pdf"):
        ps.plot.save(ps.plot.gantt(run), tmp_path / "g.gif")
    assert list(tmp_path.iterdir()) == []


def lightness(colour):
    return float(to_rgba(colour)[:3] @ np.array([0.299, 0.587, 0.114]))


def test_kinds_differ_in_black_and_white():
    shades = sorted(lightness(KIND_COLOURS[kind]) for kind in "FBIW")
    assert min(np.diff(shades)) > 0.1
    # The darkest chunk of a kind is still lighter than the lightest of the next.
    first = {kind: lightness(KIND_COLOURS[kind]) for kind in KIND_COLOURS}
    order = sorted(first, key=first.get, reverse=True)
    assert order == ["F", "W", "R", "I", "B"]
    assert all(first[a] * LAST_CHUNK[a] - first[b] > 0.03 for a, b in pairwise(order))
    assert all(first[kind] * (1 - LAST_CHUNK[kind]) > 0.035 for kind in order)
    assert lightness(IDLE_STYLES["fill"][0]) - first["F"] > 0.1


def test_causes_of_idle_time_differ_by_hatch():
    hatches = [hatch for _, hatch, _ in IDLE_STYLES.values()]
    assert len(set(hatches)) == len(hatches)
    ends = [hatch for _, hatch, _ in END_STYLES.values()]
    assert len(set(ends)) == len(ends)


def test_a_cause_of_idle_time_has_a_style_and_words_of_its_own():
    assert set(IDLE_LOOKS) == set(IDLE_CAUSES)
    assert list(IDLE_STYLES) == list(IDLE_CAUSES)
    for told in ("key", "words", "column", "measured"):
        assert all(texts := [getattr(cause, told) for cause in CAUSES])
        assert len(set(texts)) == len(texts)
    assert [words for _, _, words in IDLE_STYLES.values()] == [cause.words for cause in CAUSES]


@pytest.mark.parametrize("page", ["page/page.js", "what_if/what_if.js"])
def test_a_page_gets_the_causes_of_idle_time_as_data(page):
    script = files("pipesim.plot").joinpath(page).read_text(encoding="utf-8")
    quoted = re.findall(r"""(["'`])(.*?)\1""", script)
    assert quoted
    told = {text for cause in CAUSES for text in (cause.key, cause.words)}
    assert not told & {text for _, text in quoted}
    assert not [key for key in IDLE_CAUSES if "_" in key and key in script]


def test_text_in_files_stays_text(run, tmp_path):
    ax = ps.plot.gantt(run)
    ps.plot.save(ax, tmp_path / "g.svg")
    svg = ElementTree.parse(tmp_path / "g.svg").getroot()
    words = {"".join(node.itertext()) for node in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {"rank 0", "time [ms]", "58% idle"} < words
    ps.plot.save(ax, tmp_path / "g.pdf")
    pdf = (tmp_path / "g.pdf").read_bytes()
    assert b"/FontFile2" in pdf  # TrueType
    assert b"/Type3" not in pdf


def test_drawing_neither_shows_nor_saves(run, monkeypatch):
    monkeypatch.setattr(plt, "show", lambda *a, **k: pytest.fail("it was shown"))
    ps.plot.gantt(run)
    buffer = io.BytesIO()
    ps.plot.gantt(run).figure.savefig(buffer)
    assert buffer.getvalue()


def _bars(ax):
    """Return every bar's box (left, top, right, bottom) and its colour, without idle time."""
    found = []
    for collection in ax.collections:
        if collection.zorder == 2:
            faces = collection.get_facecolors()
            for number, path in enumerate(collection.get_paths()):
                (x0, y0), (x1, y1) = path.vertices.min(axis=0), path.vertices.max(axis=0)
                found.append(((x0, y0, x1, y1), tuple(faces[number % len(faces)])))
    return found


@pytest.mark.parametrize("name", ["dualpipe", "dualpipe_v"])
def test_overlapped_pairs_share_a_row_and_hide_nothing(name):
    p, m = 4, 8
    chunks = 2 if name == "dualpipe_v" else 1
    pipe = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=0.7, stages=p * chunks, ranks=p)
    run = ps.simulate(pipe, name, m)
    bars = [box for box, _ in _bars(ps.plot.gantt(run))]
    assert len(bars) == len(run.schedule)
    for number, (x0, y0, x1, y1) in enumerate(bars):
        for u0, v0, u1, v1 in bars[:number]:
            assert min(x1, u1) - max(x0, u0) < 1e-9 or min(y1, v1) - max(y0, v0) < 1e-9


def test_chunks_and_directions_are_told_apart():
    def shades(name, **more):
        pipe = ps.Pipeline.from_costs(1.0, 2.0, **more)
        ax = ps.plot.gantt(ps.simulate(pipe, name, 4))
        words = [text.get_text() for text in ax.get_legend().get_texts()]
        return len({colour for _, colour in _bars(ax)}), words

    assert shades("1f1b", stages=4)[0] == 2  # F and B
    count, words = shades("interleaved", stages=6, ranks=2)
    assert count == 6
    assert "later chunks: darker" in words
    count, words = shades("chimera", stages=4)
    assert count == 4
    assert "other direction: darker" in words
    both = [text.get_text() for text in ps.plot.gantt(compared("")).get_legend().get_texts()]
    assert "later chunks, other direction: darker" in both


def heat_table(xs, ys, fail=None):
    rows = [(x, y, 1 + 0.1 * i + 0.2 * j) for i, x in enumerate(xs) for j, y in enumerate(ys)]
    table = pd.DataFrame(rows, columns=["m", "factor", "inflation"])
    if fail is not None:
        table.loc[fail, "inflation"] = float("nan")
    return table


def test_a_heat_map_has_a_cell_a_row():
    ax = ps.plot.heat_map(heat_table([4, 8, 16], [1.0, 1.5], fail=1), "m", "factor", "inflation")
    (mesh,) = [c for c in ax.collections if hasattr(c, "get_coordinates")]
    assert mesh.get_array().shape == (2, 3)
    assert mesh.get_array().mask.sum() == 1
    assert [text.get_text() for text in ax.texts] == ["1", "1.1", "1.2", "1.3", "1.4"]
    assert len(ax.lines) == 1  # the cell without a number is crossed out
    assert ax.get_xscale() == "log"
    assert ax.get_yscale() == "linear"
    assert mesh.colorbar.ax.get_ylabel().startswith("inflation: makespan")
    plt.close("all")


def test_a_heat_map_of_many_cells_and_of_texts():
    ax = ps.plot.heat_map(heat_table(range(1, 31), range(30)), "m", "factor", "inflation")
    assert not ax.texts
    assert ax.get_xscale() == "linear"
    ax = ps.plot.heat_map(heat_table(["z", "a"], [1, 2, 10]), "m", "factor", "inflation")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["z", "a"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["1", "2", "10"]
    plt.close("all")


def test_what_is_no_heat_map():
    table = heat_table([4, 8], [1, 2])
    with pytest.raises(ValueError, match="has no column 'x'"):
        ps.plot.heat_map(table, "x", "factor", "inflation")
    with pytest.raises(ValueError, match="several rows for one pair"):
        ps.plot.heat_map(pd.concat([table, table]), "m", "factor", "inflation")
    with pytest.raises(ValueError, match="nothing to show"):
        ps.plot.heat_map(table.iloc[:0], "m", "factor", "inflation")


def bands(ax, face):
    """Return the filled areas of one colour, a path each."""
    drawn = (c for c in ax.collections if np.array_equal(c.get_facecolor()[:1], [to_rgba(face)]))
    return [collection.get_paths()[0] for collection in drawn]


def test_memory_is_stacked_by_what_it_is_with_the_limit_above():
    pipe = ps.Pipeline.from_costs(
        [1, 2], [2, 4], stash_bytes=10, param_bytes=20, optimizer_bytes=50, memory_bytes=[200, 100]
    )
    figure, axes = plt.subplots()
    ax = ps.plot.memory(ps.simulate(pipe, "1f1b", 4), ax=axes)
    assert ax is axes
    assert figure.axes == [axes]
    assert [text.get_text() for text in ax.texts] == ["90 of 200 B", "80 of 100 B"]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["parameters", "optimizer", "activations", "memory of the device"]
    # A row is 0.84 high for 200 bytes; rank 0 stands on 0.42.
    first = bands(ax, MEMORY_STYLES["params"][0])[0].vertices[:, 1]
    assert (first.max(), first.min()) == pytest.approx((0.42, 0.42 - 0.084))
    top = bands(ax, MEMORY_STYLES["activations"][0])
    assert len(top) == 2
    assert top[0].vertices[:, 1].min() == pytest.approx(0.42 - 0.84 * 90 / 200)
    limits = [line.get_ydata()[0] for line in ax.lines]
    assert limits == pytest.approx([0.42 - 0.84, 1.42 - 0.42])


def test_memory_of_nothing_and_without_a_limit():
    bare = ps.plot.memory(ps.simulate(ps.Pipeline.from_costs([1, 1], [2, 2]), "1f1b", 2))
    assert [text.get_text() for text in bare.texts] == ["0 B", "0 B"]
    assert bare.get_legend() is None
    assert len(bare.lines) == 0
    pipe = ps.Pipeline.from_costs([1], [2], param_bytes=[5 * 10**9], memory_bytes=10**12)
    ax = ps.plot.memory(ps.simulate(pipe, "1f1b", 2))
    assert [text.get_text() for text in ax.texts] == ["5 GB of 1 TB"]


def test_memory_differs_by_lightness_alone():
    luma = [to_rgba(face)[:3] @ np.array([0.3, 0.59, 0.11]) for face, _ in MEMORY_STYLES.values()]
    assert (np.diff(luma) > 0.15).all()
