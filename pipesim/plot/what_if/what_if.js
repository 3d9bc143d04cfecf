"use strict";
// What a what-if page does: its chart, numbers and curve follow the sliders.
const whatIf = {
  // The row of the table at positions of the sliders.
  row(page, positions) {
    let place = 0;
    positions.forEach((position, number) => { place += position * page.strides[number]; });
    return page.rows[place];
  },

  positions(page) {
    return page.sliders.map((slider) => slider.categories.indexOf(slider.value));
  },

  // Show the point at the sliders.
  show(page) {
    const row = whatIf.row(page, whatIf.positions(page));
    const error = page.errors[row];
    page.note.text = error === undefined ? "" : `<b>This point cannot be run:</b> ${whatIf.escape(error)}`;
    page.table.text = whatIf.tabulate(page, row);
    if (page.chart !== null) whatIf.draw(page.chart, page.chart.points[row]);
    if (page.curve !== null) whatIf.plot(page, page.curve);
  },

  // Measure differences from the point at the sliders on.
  compare(page) {
    page.base = whatIf.row(page, whatIf.positions(page));
    whatIf.show(page);
  },

  // Draw a point of the sweep, or nothing where it cannot be run.
  draw(chart, point) {
    const { figure, blank, columns } = chart;
    const nothing = { title: "this point cannot be run", shares: [], limits: {}, boxes: {} };
    const { title, shares, limits, boxes } = point ?? nothing;
    const read = (name) => {
      const own = boxes[name];
      if (own === undefined) return blank[name];
      return Object.fromEntries(Object.entries(own).map(([column, number]) => [column, columns[number]]));
    };
    for (const { name, data_source: source } of figure.renderers) {
      if (name in blank) source.data = read(name);
      if (name.startsWith("bars ")) chart.legend[name].index = pipesim.lightest(source.data.colour);
      if (chart.limits.includes(name)) {
        const time = limits[name] ?? NaN;
        source.data = { x: [time, time], y: [-0.5, shares.length - 0.5] };
        const text = Number.isNaN(time) ? name : `${name}: ${whatIf.tell(time, "ms", 5)}`;
        chart.legend[name].label = { value: text };
      }
    }
    figure.title.tags = [title];
    pipesim.fit(figure);
    whatIf.nameRows(figure.left[0], shares.map((_, rank) => `rank ${rank}`));
    whatIf.nameRows(figure.right[0], shares);
    chart.parts[0].messages.data = read("messages");
    pipesim.pick(chart.parts, chart.picker.value);
  },

  // Name the rows that a point has; its ticks stay, as Bokeh warns where both change.
  nameRows(axis, texts) {
    const names = axis.ticker.ticks.map((rank) => [rank, texts[rank] ?? ""]);
    axis.major_label_overrides = new Map(names);
  },

  // The numbers of a point beside those of the one that it is compared with.
  tabulate(page, row) {
    const cells = (words, now, then, change) =>
      `<tr><td>${words}</td><td>${now}</td><td>${then}</td><td>${change}</td></tr>`;
    const lines = [cells("", "<b>this point</b>", "compared with", "difference")];
    for (const [words, texts] of Object.entries(page.heads))
      lines.push(cells(words, whatIf.escape(texts[row]), whatIf.escape(texts[page.base]), ""));
    for (const { words, unit, values } of Object.values(page.numbers)) {
      const now = values[row], then = values[page.base];
      lines.push(cells(words, `<b>${whatIf.tell(now, unit)}</b>`, whatIf.tell(then, unit), whatIf.change(now, then, unit)));
    }
    const place = page.rows.indexOf(page.base);
    const base = page.sliders.map(({ title, categories }, number) =>
      `${title} = ${categories[Math.floor(place / page.strides[number]) % categories.length]}`);
    const from = base.length === 0 ? "" : `compared with ${whatIf.escape(base.join("; "))}`;
    return `<table>${lines.join("")}</table><p>${from}</p>`;
  },

  // Plot a number over an axis at the other sliders' values, all curves of a number on one scale.
  plot(page, curve) {
    const { words, unit, values } = page.numbers[curve.number.value];
    const axis = page.sliders.findIndex((slider) => slider.title === curve.axis.value);
    const positions = whatIf.positions(page), texts = page.sliders[axis].categories;
    const columns = { x: [], y: [], at: [], text: [] };
    texts.forEach((at, position) => {
      const row = whatIf.row(page, positions.map((other, number) => (number === axis ? position : other)));
      const value = values[row];
      columns.x.push(position);
      columns.y.push(Number.isFinite(value) ? value : NaN);
      columns.at.push(at);
      columns.text.push(whatIf.tell(value, unit));
    });
    curve.line.data = columns;
    curve.mark.data = { x: [positions[axis]], y: [columns.y[positions[axis]]] };
    const { figure } = curve;
    figure.below[0].axis_label = whatIf.cut(curve.axis.value, figure.inner_width / 8);
    figure.left[0].axis_label = words;
    const ticks = whatIf.thinned(texts, figure.inner_width);
    figure.below[0].ticker.ticks = ticks;
    const labels = ticks.map((position) => [position, pipesim.plain(texts[position])]);
    figure.below[0].major_label_overrides = new Map(labels);
    figure.x_range.setv({ start: -0.4, end: texts.length - 0.6 });
    const [low, high] = whatIf.extent(values);
    const room = 0.06 * (high - low) || 0.06 * Math.abs(high) || 1;
    figure.y_range.setv({ start: low - room, end: high + room });
  },

  // The positions at which there is room for the texts.
  thinned(texts, width) {
    const widest = 7 * Math.max(...texts.map((text) => text.length)) + 14;  // pixels
    const step = Math.ceil(texts.length / Math.max(2, Math.floor(width / widest)));
    return [...texts.keys()].filter((position) => position % step === 0);
  },

  extent(values) {
    let low = Infinity, high = -Infinity;
    for (const value of values) {
      if (!Number.isFinite(value)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    return [low, high];
  },

  cut(text, most) {
    return text.length <= most ? text : `${text.slice(0, Math.max(0, most - 1))}…`;
  },

  // A number with its unit.
  tell(value, unit, digits = 6) {
    if (Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
    if (unit === "ms") return `${Number(value < 10 ** digits ? value.toPrecision(digits) : value.toFixed(0))} ms`;
    if (unit === "share") return `${whatIf.rounded(100 * value, 2)}%`;
    if (unit === "ratio") return whatIf.rounded(value, 4);
    const units = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [0, "B"]];
    const [size, name] = units.find(([least]) => Math.abs(value) >= least);
    return `${Number((value / (size || 1)).toPrecision(4))} ${name}`;
  },

  // Digits behind the point, without the sign of a zero.
  rounded(value, digits) {
    return value.toFixed(digits).replace(/^-(?=[0.]*$)/, "");
  },

  // A number beside an axis.
  tick(value, unit) {
    if (unit === "share") return `${Number((100 * value).toPrecision(4))}%`;
    return unit === "ratio" ? String(Number(value.toPrecision(4))) : whatIf.tell(value, unit);
  },

  // How far a value is from another one: +12.3 ms, +4.1%; shares in percentage points.
  change(now, then, unit) {
    const by = now - then, size = Math.abs(by);
    if (!Number.isFinite(by)) return "";
    // Less is rounding, of what is shown or of sums.
    const least = unit === "share" || unit === "ratio" ? 5e-5 : 1e-12 * Math.abs(then);
    if (size <= least) return "0";
    const sign = by > 0 ? "+" : "-";
    if (unit === "share") return `${sign}${whatIf.rounded(100 * size, 2)} points`;
    const part = then === 0 ? "" : `, ${sign}${whatIf.rounded(Math.abs((100 * by) / then), 1)}%`;
    return `${sign}${whatIf.tell(size, unit, 5)}${part}`;
  },

  escape(text) {
    const signs = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
    return String(text).replace(/[&<>"]/g, (sign) => signs[sign]);
  },
};
