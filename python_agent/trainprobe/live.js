// What a browser shows of a live view (live.py): charts as SVG, a table of the latest values, and how the run is.
// Elements stay and only what they say changes, so nothing flickers. Nothing is fetched from anywhere.

const COLOURS = 8;
const HEIGHT = 190;
const LEFT = 52, RIGHT = 8, TOP = 8, BOTTOM = 20;
const BAR = 18;

const colour = (index) => `var(--c${index % COLOURS})`;
const isDashed = (index) => Math.floor(index / COLOURS) % 2 === 1;

/** An element of HTML, or of SVG where `space` says so, with attributes, within `parent`. */
function add(parent, name, attributes = {}, space = null) {
  const made = space ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  set(made, attributes);
  parent.append(made);
  return made;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") {
      if (element.textContent !== value) element.textContent = value;
    } else if (element.getAttribute(name) !== String(value)) {
      element.setAttribute(name, value);
    }
  }
}

/** Makes `parent` have so many children, by `make`, and gives them to `fill` one by one. */
function each(parent, items, make, fill) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, index) => fill(parent.children[index] ?? make(parent), item, index));
}

/** Seconds are shown as what their size asks for. */
function scaled(unit, largest) {
  if (unit !== "s" || !(largest > 0) || largest >= 1) return [1, unit];
  return largest >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
}

/** About five round numbers from `low` to `high`. */
function ticks(low, high) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(Math.abs(at) < step / 1e6 ? 0 : at);
  return found;
}

const short = (number) => String(Number(number.toPrecision(4)));

function range(numbers, withZero) {
  let low = Infinity, high = -Infinity;
  for (const number of numbers) {
    if (number < low) low = number;
    if (number > high) high = number;
  }
  if (low > high) [low, high] = [0, 1];
  if (withZero) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  return high > low ? [low, high] : [low - 0.5, low + 0.5];
}

/** The words for an x value: times are in UTC, and steps have all of their digits. */
function along(chart, at) {
  return chart.time ? new Date(at * 1000).toISOString().slice(11, 23) : String(Number(at.toPrecision(10)));
}

/** One chart: its elements, and how an answer changes them. */
class Chart {
  constructor(parent) {
    this.figure = add(parent, "figure");
    this.caption = add(this.figure, "figcaption");
    this.legend = add(this.figure, "div", { class: "legend" });
    this.svg = add(this.figure, "svg", { role: "img" }, "svg");
    this.grid = add(this.svg, "g", {}, "svg");
    this.marks = add(this.svg, "g", {}, "svg");
    this.cursor = add(this.svg, "line", { class: "grid", visibility: "hidden" }, "svg");
    this.reading = add(this.figure, "div", { class: "reading", "aria-hidden": "true" });
    this.svg.addEventListener("pointermove", (event) => this.read(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.read(null));
    this.at = null;
  }

  draw(chart, numbers, width) {
    this.chart = chart;
    this.series = chart.series.map((series) => ({
      name: series.name,
      x: series.x === undefined ? null : numbers[series.x],
      y: numbers[series.y],
    }));
    this.width = Math.max(width, 200);
    this.marks.setAttribute("class", chart.kind);
    // A single series with the name of the chart needs no legend.
    const named = this.series.length === 1 && this.series[0].name === chart.title ? [] : this.series;
    each(this.legend, named, (parent) => {
      const entry = add(parent, "span");
      add(entry, "i");
      add(entry, "span");
      return entry;
    }, (entry, series, index) => {
      set(entry.firstElementChild, { style: `border-color:${colour(index)}`, class: isDashed(index) ? "dashed" : "" });
      set(entry.lastElementChild, { text: series.name });
    });
    if (chart.kind === "line") this.lines();
    else if (chart.kind === "stack") this.stack();
    else this.bars();
    this.read(this.at);
  }

  /** Sets the size, the caption and what a screen reader says. */
  frame(height, unit, said) {
    set(this.svg, { height, viewBox: `0 0 ${this.width} ${height}` });
    set(this.caption, { text: [this.chart.title, unit].filter(Boolean).join(", ") || " " });
    set(this.svg, { "aria-label": `${this.chart.title || this.chart.kind}: ${said}` });
  }

  /** Lines across with their numbers, and words below. */
  axes(low, high, factor, words) {
    const up = (at) => TOP + (HEIGHT - TOP - BOTTOM) * (high - at) / (high - low);
    const rows = ticks(low, high).map((at) => ({ line: up(at), x: LEFT - 6, y: up(at) + 4, anchor: "end", text: short(at * factor) }));
    each(this.grid, [...rows, ...words], (parent) => {
      const group = add(parent, "g", {}, "svg");
      add(group, "line", { class: "grid" }, "svg");
      add(group, "text", {}, "svg");
      return group;
    }, (group, row) => {
      const [line, text] = group.children;
      const shown = row.line !== undefined;
      set(line, shown ? { x1: LEFT, x2: this.width - RIGHT, y1: row.line, y2: row.line, visibility: "visible" } : { visibility: "hidden" });
      set(text, { x: row.x, y: row.y, "text-anchor": row.anchor, text: row.text });
    });
    return up;
  }

  lines() {
    const values = this.series.flatMap((series) => [...series.y].filter(Number.isFinite));
    const [low, high] = range(values, true);
    const [left, right] = range(this.series.flatMap((series) => [...series.x]), false);
    const [factor, unit] = scaled(this.chart.unit, Math.max(high, -low));
    const ends = values.length
      ? [{ x: LEFT, anchor: "start", at: left }, { x: this.width - RIGHT, anchor: "end", at: right }]
      : [];
    const words = ends.map((end) => ({ ...end, y: HEIGHT - 5, text: along(this.chart, end.at) }));
    words.push({ x: (LEFT + this.width - RIGHT) / 2, y: HEIGHT - 5, anchor: "middle", text: values.length ? this.chart.x + (this.chart.time ? ", UTC" : "") : "no values yet" });
    const up = this.axes(low, high, factor, words);
    this.across = (at) => LEFT + (this.width - LEFT - RIGHT) * (at - left) / (right - left);
    each(this.marks, this.series, (parent) => add(add(parent, "path", {}, "svg"), "title", {}, "svg").parentNode, (path, series, index) => {
      let d = "", isDown = false;
      series.y.forEach((value, at) => {
        // A gap where there is no value.
        if (!Number.isFinite(value)) isDown = false;
        else {
          const point = `${this.across(series.x[at]).toFixed(1)} ${up(value).toFixed(1)}`;
          // A value alone between gaps is a dot.
          d += isDown ? `L${point}` : `M${point}h0`;
          isDown = true;
        }
      });
      set(path, { d, stroke: colour(index), "stroke-dasharray": isDashed(index) ? "5 3" : "none", "stroke-linecap": "round" });
      set(path.firstElementChild, { text: series.name });
    });
    this.number = (value) => `${short(value * factor)}${unit ? ` ${unit}` : ""}`;
    const latest = this.series.map((series) => [series.name, [...series.y].reverse().find(Number.isFinite)]);
    const said = latest.map(([name, value]) => `${name} ${value === undefined ? "not measured" : this.number(value)}`).join(", ");
    this.frame(HEIGHT, unit, `lines by ${this.chart.x}; latest: ${said || "no values yet"}`);
  }

  bars() {
    const values = this.series.flatMap((series) => [...series.y].filter(Number.isFinite));
    const [low, high] = range(values, true);
    const [factor, unit] = scaled(this.chart.unit, Math.max(high, -low));
    const labels = this.chart.labels;
    const room = (this.width - LEFT - RIGHT) / Math.max(1, labels.length);
    const fits = labels.length <= 24;
    const cut = (label) => label.length * 6.5 < room ? label : `${label.slice(0, Math.max(1, Math.floor(room / 6.5) - 1))}…`;
    const words = fits ? labels.map((label, at) => ({ x: LEFT + room * (at + 0.5), y: HEIGHT - 5, anchor: "middle", text: cut(label) })) : [];
    const up = this.axes(low, high, factor, words);
    const bars = this.series.flatMap((series, index) => labels.map((label, at) => ({ series, index, label, value: series.y[at], at })));
    const wide = room * 0.8 / Math.max(1, this.series.length);
    this.rectangles(bars.filter((bar) => Number.isFinite(bar.value)).map((bar) => ({
      x: LEFT + room * (bar.at + 0.1) + wide * bar.index,
      y: Math.min(up(bar.value), up(0)),
      width: wide,
      height: Math.abs(up(bar.value) - up(0)),
      fill: colour(bar.index),
      text: `${bar.label}: ${bar.series.name} ${short(bar.value * factor)}`,
    })));
    this.frame(HEIGHT, unit, labels.length > 24 ? `${labels.length} bars; the table has the first values` : (bars.map((bar) => `${bar.label} ${Number.isFinite(bar.value) ? short(bar.value * factor) : "NULL"}`).join(", ") || "no values yet"));
  }

  /** A bar a label, whose parts lie beside each other. */
  stack() {
    const labels = this.chart.labels;
    const sums = labels.map((_, at) => this.series.reduce((sum, series) => sum + (series.y[at] || 0), 0));
    const most = Math.max(...sums, 0);
    const [factor, unit] = scaled(this.chart.unit, most);
    const height = Math.max(HEIGHT, labels.length * BAR + BOTTOM);
    const left = Math.max(LEFT, ...labels.map((label) => label.length * 6.5 + 10));
    const right = this.width - 74;
    const across = (value) => (right - left) * value / (most || 1);
    const gap = Math.min(34, (height - BOTTOM) / Math.max(1, labels.length));
    const row = (at) => TOP + gap * at;
    const thick = Math.min(24, gap * 0.75);
    each(this.grid, labels.flatMap((label, at) => [
      { x: left - 6, anchor: "end", at, text: label },
      { x: left + across(sums[at]) + 6, anchor: "start", at, text: `${short(sums[at] * factor)} ${unit}` },
    ]), (parent) => add(parent, "text", {}, "svg"), (text, word) => {
      set(text, { x: word.x, y: row(word.at) + thick / 2 + 4, "text-anchor": word.anchor, text: word.text });
    });
    const bars = [];
    labels.forEach((label, at) => {
      let from = left;
      this.series.forEach((series, index) => {
        const value = series.y[at];
        if (!(value > 0)) return;
        bars.push({ x: from, y: row(at), width: across(value), height: thick, fill: colour(index), text: `${label}: ${series.name} ${short(value * factor)} ${unit}` });
        from += across(value);
      });
    });
    this.rectangles(bars);
    const said = labels.map((label, at) => `${label} ${this.series.filter((series) => series.y[at] > 0).map((series) => `${series.name} ${short(series.y[at] * factor)} ${unit}`).join(" ")}`);
    this.frame(TOP + gap * labels.length + 4, unit, said.join("; ") || "no values yet");
  }

  rectangles(bars) {
    each(this.marks, bars, (parent) => add(add(parent, "rect", {}, "svg"), "title", {}, "svg").parentNode, (rect, { text, ...bar }) => {
      set(rect, bar);
      set(rect.firstElementChild, { text });
    });
  }

  /** Shows the values of the lines at an x position. */
  read(x) {
    this.at = x;
    const xs = this.series?.[0]?.x;
    const shows = x !== null && this.chart?.kind === "line" && xs?.length;
    set(this.cursor, { visibility: shows ? "visible" : "hidden" });
    if (!shows) return set(this.reading, { text: "" });
    const nearest = (series) => {
      let best = -1;
      series.x.forEach((at, index) => {
        if (best < 0 || Math.abs(this.across(at) - x) < Math.abs(this.across(series.x[best]) - x)) best = index;
      });
      return best;
    };
    const at = xs[nearest(this.series[0])];
    set(this.cursor, { x1: this.across(at), x2: this.across(at), y1: TOP, y2: HEIGHT - BOTTOM });
    const values = this.series.map((series) => {
      const index = nearest(series);
      return series.x[index] === at && Number.isFinite(series.y[index]) ? `${series.name} ${this.number(series.y[index])}` : null;
    });
    set(this.reading, { text: `${this.chart.x} ${along(this.chart, at)}: ${values.filter(Boolean).join(", ")}` });
  }
}

/** Whether text is light here, as the computed style says. */
function isDark(element) {
  const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
  context.fillStyle = getComputedStyle(element).color;
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue] = context.getImageData(0, 0, 1, 1).data;
  return 0.3 * red + 0.6 * green + 0.1 * blue > 128;
}

function render({ model, el }) {
  const name = model.get("name");
  const root = add(el, "section", { class: "trainprobe-live", "aria-label": `live view of ${name}` });
  const header = add(root, "header");
  add(header, "strong", { text: name });
  add(header, "span", { class: "title", text: model.get("title"), title: model.get("title") });
  const status = add(header, "span", { class: "status", role: "status" });
  const button = add(header, "button", { type: "button", hidden: "" });
  const area = add(root, "div", { class: "charts" });
  const notes = add(root, "ul");
  const table = add(add(root, "div", { class: "scroll" }), "table");
  const head = add(add(table, "thead"), "tr"), body = add(table, "tbody");
  const charts = [];
  const silence = Math.max(10_000, 3000 * model.get("every"));
  let answer = null, drawn = 0, state = "live", said = "", heard = Date.now(), isOn = true;

  const isSeen = () => isOn && document.visibilityState === "visible";

  function say() {
    const quiet = Date.now() - heard;
    const isSilent = state === "live" && isSeen() && quiet > silence;
    const silent = `no answer for ${Math.round(quiet / 1000)} s: the kernel is busy or has ended, or the run does not answer`;
    const words = isSilent ? silent : said;
    // Only a change is said aloud.
    set(status, { text: words });
    root.dataset.state = isSilent ? "silent" : state;
    const does = { live: "Pause", paused: "Resume", failed: "Try again" }[state];
    button.hidden = !does;
    set(button, { text: does ?? "" });
  }

  function draw() {
    if (!answer || !isSeen()) return;
    const { content, numbers } = answer;
    root.dataset.dark = isDark(root);
    while (charts.length > content.charts.length) charts.pop().figure.remove();
    content.charts.forEach((chart, index) => {
      charts[index] ??= new Chart(area);
    });
    content.charts.forEach((chart, index) => charts[index].draw(chart, numbers, charts[index].figure.clientWidth));
    each(notes, content.notes, (parent) => add(parent, "li"), (item, text) => set(item, { text }));
    each(head, content.table.columns, (parent) => {
      const cell = add(parent, "th", { scope: "col" });
      add(cell, "span");
      add(cell, "small");
      return cell;
    }, (cell, column) => {
      set(cell, { class: column.right ? "right" : "" });
      set(cell.firstElementChild, { text: column.name });
      set(cell.lastElementChild, { text: column.unit });
    });
    each(body, content.table.rows, (parent) => add(parent, "tr"), (row, cells) => {
      each(row, cells, (parent) => add(parent, "td"), (cell, text, index) => {
        set(cell, { text, class: content.table.columns[index].right ? "right" : "" });
      });
    });
    if (content.n !== drawn) root.dataset.answer = drawn = content.n;
    model.send({ kind: "seen", n: content.n });
  }

  function hear(content, buffers) {
    if (content.kind === "answer") {
      const copied = (view) => (ArrayBuffer.isView(view) ? view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength) : view);
      answer = { content, numbers: buffers.map((buffer) => new Float64Array(copied(buffer))) };
      heard = Date.now();
      draw();
    } else if (content.kind === "status") {
      ({ state, said } = content);
      heard = Date.now();
    } else if (content.kind === "who" && isSeen()) {
      model.send({ kind: "seen", n: answer?.content.n ?? 0 });
    }
    say();
  }

  button.addEventListener("click", () => model.send({ kind: state === "live" ? "pause" : "resume" }));
  const appear = () => {
    if (!isSeen()) return;
    heard = Date.now();
    if (answer) draw();
    else model.send({ kind: "hello" });
  };
  const watcher = new IntersectionObserver((entries) => {
    isOn = entries.at(-1).isIntersecting;
    appear();
  });
  watcher.observe(root);
  const sizes = new ResizeObserver(() => draw());
  sizes.observe(area);
  document.addEventListener("visibilitychange", appear);
  const clock = setInterval(say, 1000);
  model.on("msg:custom", hear);
  model.send({ kind: "hello" });
  say();
  return () => {
    clearInterval(clock);
    watcher.disconnect();
    sizes.disconnect();
    document.removeEventListener("visibilitychange", appear);
    model.off("msg:custom", hear);
    root.remove();
    model.send({ kind: "gone" });
  };
}

export default { render };
