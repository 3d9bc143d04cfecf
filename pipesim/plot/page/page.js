"use strict";
// What a page of pipesim does: called by the callbacks of its charts and controls.
const pipesim = {
  MOST_LABELS: 3000,
  WEBGL: document.createElement("canvas").getContext("webgl") !== null,
  TOOLS: 60,  // pixels beside a title: a tool, and the button that lists the others

  // 2F0, or 2F0.1 for the second slice of a micro-batch.
  nameOp(source, kind, row) {
    return `${source.data.stage[row]}${kind}${pipesim.part(source.data, row)}`;
  },

  // A micro-batch, or a slice of one, where they are cut.
  part({ microbatch, slice }, row) {
    return String(microbatch[row]) + (slice[row] >= 0 ? `.${slice[row]}` : "");
  },

  // A time, with all digits that tell neighbours apart: long ones grouped, short ones not as 0.
  tellTime(time, digits = 9) {
    return `${time.toLocaleString("en-US", { maximumSignificantDigits: digits })} ms`;
  },

  // How long the rank was idle before an op, why, and what it waited for. `causes` has the words of
  // each cause by its key, and `inputs` the keys of those that end as the input comes.
  tellWait({ data }, causes, inputs, row) {
    const time = pipesim.tellTime(data.waited[row], 6);
    const parts = Object.keys(causes).filter((cause) => data[cause]?.[row] > 0);
    if (parts.length === 0) return time;
    const texts = parts.map((cause) => causes[cause]);
    if (data.source[row] >= 0) {
      const op = `${data.source[row]}${"FBIWR"[data.source_kind[row]]}${pipesim.part(data, row)}`;
      const input = `${op} of rank ${data.source_rank[row]}`;
      const wait = parts.findIndex((cause) => inputs.includes(cause));
      if (wait >= 0) texts[wait] = `for ${input}`;
      else texts.push(`input from ${input}`);  // it came while transfers held the rank
    }
    if (parts.length === 1) return [time, ...texts].join(", ");
    parts.forEach((cause, number) => {
      texts[number] = `${pipesim.tellTime(data[cause][row], 6)} ${texts[number]}`;
    });
    return `${time}: ${texts.join(", ")}`;
  },

  // Light up one micro-batch across the ranks of all charts; "all": none.
  pick(charts, choice) {
    const microbatch = choice === "all" ? -1 : Number(choice);
    for (const { bars, messages, sent } of charts) {
      for (const { data_source: source } of bars) {
        const rows = [];
        source.data.microbatch.forEach((value, row) => { if (value === microbatch) rows.push(row); });
        // A kind without ops of this micro-batch has to fade, too.
        source.selected.indices = microbatch >= 0 && rows.length === 0 ? [-1] : rows;
      }
      const columns = { x0: [], y0: [], x1: [], y1: [] };
      messages.data.microbatch.forEach((value, row) => {
        if (value !== microbatch) return;
        for (const name in columns) columns[name].push(messages.data[name][row]);
      });
      sent.data = columns;
    }
  },

  // The micro-batch of the bar at a place, or "all" beside the bars.
  find(bars, x, y) {
    for (const { visible, data_source: { data } } of bars) {
      if (!visible) continue;
      for (let row = 0; row < data.left.length; row++) {
        if (data.left[row] <= x && x <= data.right[row] && data.top[row] <= y && y <= data.bottom[row])
          return String(data.microbatch[row]);
      }
    }
    return "all";
  },

  // Show the figures of one of several units.
  show(units, chosen) {
    units.forEach((figures, unit) => figures.forEach((figure) => { figure.visible = unit === chosen; }));
  },

  // Break the title of a figure, which its tags hold whole, and its legend where it is narrow.
  fit({ title, below, inner_width: room }) {
    const font = (size) => `${title.text_font_style} ${size} ${title.text_font}`;
    const text = pipesim.wrap(title.tags[0], room - pipesim.TOOLS, pipesim.ruler(font(title.text_font_size)));
    if (title.text.text !== text) title.text = pipesim.plain(text);
    const legend = below.find((each) => each.type === "Legend");
    if (legend !== undefined) legend.ncols = pipesim.columns(legend, room);
  },

  // A text in which Bokeh looks for no formulas.
  plain(text) {
    const PlainText = Bokeh.Models.get("PlainText");
    return new PlainText({ text });
  },

  // Measures texts in a font [pixels].
  ruler(font) {
    const context = document.createElement("canvas").getContext("2d");
    context.font = font;
    return (text) => context.measureText(text).width;
  },

  // Break a text between its words, and within long ones, where it is wider than there is room.
  wrap(text, room, measure) {
    return text.split("\n").map((paragraph) => {
      const lines = [""];
      for (const word of paragraph.match(/\S{1,24}\s?|\s/g) ?? []) {
        const longer = lines.at(-1) + word;
        if (lines.at(-1) === "" || measure(longer.trimEnd()) <= room) lines[lines.length - 1] = longer;
        else lines.push(word);
      }
      return lines.map((line) => line.trimEnd()).join("\n");
    }).join("\n");
  },

  // How many columns of a legend there is room for.
  columns(legend, room) {
    const measure = pipesim.ruler(`${legend.label_text_font_size} ${legend.label_text_font}`);
    const beside = legend.glyph_width + legend.label_standoff + legend.spacing;
    const widths = legend.items.map(({ label }) => measure(label.value) + beside);
    for (let count = widths.length; count > 1; count--) {
      const widest = new Array(count).fill(0);
      widths.forEach((width, item) => { widest[item % count] = Math.max(widest[item % count], width); });
      if (widest.reduce((sum, width) => sum + width) <= room) return count;
    }
    return 1;
  },

  // Outline bars, but where they are so narrow that little else of them were seen; and where they
  // are narrower than a pixel draw them lighter, as far as one has zoomed.
  outline({ glyph, data_source: source }, wide) {
    const { left, right } = source.data;
    const middle = left.length >> 1;
    const pixels = (right[middle] - left[middle]) * wide;
    const width = pixels > 6 ? 0.5 : 0;
    if (glyph.line_width.value !== width) glyph.line_width = { value: width };
    const { transform } = glyph.fill_alpha;
    // All bars are drawn anew for it, which takes time: only where one has zoomed well on.
    const near = 2 ** (Math.round(2 * Math.log2(wide)) / 2);
    const scale = pipesim.strength(pixels) < 1 ? near : Infinity;
    if (transform.tags[0] === scale) return;
    transform.setv({ tags: [scale], args: { source, scale } });
  },

  // How opaque a bar of so many pixels is. However narrow it is, WebGL draws it with soft edges,
  // which colour as much as 0.28 pixels more.
  strength(pixels) {
    const drawn = pixels * devicePixelRatio;
    if (!pipesim.WEBGL || !(drawn < 0.7)) return 1;
    return Math.max(0.05, drawn / (0.28 + 0.6 * drawn));
  },

  // How opaque all bars are, at so many pixels a millisecond; but those in the legend wholly.
  strengths({ left, right, colour }, scale) {
    const found = Float64Array.from(left, (from, row) => pipesim.strength((right[row] - from) * scale));
    found[pipesim.lightest(colour)] = 1;
    return found;
  },

  // The number of a bar in its kind's own colour, which the legend shows; later chunks are darker.
  lightest(colours) {
    let best = 0, most = -1;
    for (let row = 0; 4 * row < colours.length; row++) {
      const light = colours[4 * row] + colours[4 * row + 1] + colours[4 * row + 2];
      if (light > most) [best, most] = [row, light];
    }
    return best;
  },

  // The pixels that a number of so many characters takes in a bar.
  widthOf(characters) {
    return 6 * characters + 4;
  },

  // Write the micro-batch into the bars that are in view and wide enough.
  label(figure, bars, colours, labels) {
    if (labels.waiting) return;
    labels.waiting = true;
    requestAnimationFrame(() => {
      labels.waiting = false;
      const { start, end } = figure.x_range;
      const wide = figure.inner_width / (end - start);  // pixels a millisecond
      const high = figure.inner_height / Math.abs(figure.y_range.end - figure.y_range.start);
      const columns = { x: [], y: [], text: [], colour: [] };
      bars.forEach((bar, number) => {
        if (!bar.visible) return;
        pipesim.outline(bar, wide);
        const { data, selected } = bar.data_source;
        const room = (row) =>
          wide * (Math.min(data.right[row], end) - Math.max(data.left[row], start));
        const picked = selected.indices;
        const candidates = [];
        for (const row of picked.length > 0 ? picked : data.left.keys()) {
          if (row < 0 || room(row) < pipesim.widthOf(1)) continue;
          if (Math.abs(data.bottom[row] - data.top[row]) * high < 10) continue;
          candidates.push([row, pipesim.part(data, row)]);
        }
        // The widest number decides for all of a kind: else only the short ones would stand.
        const longest = candidates.reduce((most, [, text]) => Math.max(most, text.length), 0);
        for (const [row, text] of candidates) {
          if (columns.x.length >= pipesim.MOST_LABELS) break;
          if (room(row) < pipesim.widthOf(longest)) continue;
          columns.x.push((Math.max(data.left[row], start) + Math.min(data.right[row], end)) / 2);
          columns.y.push((data.bottom[row] + data.top[row]) / 2);
          columns.text.push(text);
          columns.colour.push(colours[number]);
        }
      });
      labels.data = columns;
    });
  },
};
