"use strict";
// Draws the curves of a report from the data in the page, as SVG. What is shown (axis, smoothing, logarithmic scales) is
// also in the address after the '#', so that a view can be kept or sent: #x=tokens&smooth=0.6&log=loss,grad_norm
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const runs = data.runs;
  const charts = [];
  const SVG = "http://www.w3.org/2000/svg";
  const AXES = { step: "step", tokens: "tokens", seconds: "time" };

  const shortNumber = (value) => {
    const size = Math.abs(value);
    for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (size >= unit) return trim((value / unit).toPrecision(3)) + letter;
    }
    if (size === 0) return "0";
    return size < 1e-3 ? value.toExponential(2).replace(/\.?0+e/, "e") : trim(value.toPrecision(4));
  };
  const trim = (text) => (text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text);
  const wholeNumber = (value) => Math.round(value).toLocaleString("en-US");
  const bytes = (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    for (; Math.abs(value) >= 1024 && unit + 1 < units.length; ++unit) value /= 1024;
    return (unit === 0 ? wholeNumber(value) : trim(value.toPrecision(4))) + " " + units[unit];
  };
  const duration = (value) => {
    if (value < 60) return trim(value.toPrecision(3)) + " s";
    const total = Math.round(value);
    const parts = [[Math.floor(total / 3600), "h"], [Math.floor(total / 60) % 60, "min"], [total % 60, "s"]];
    const first = parts.findIndex(([count]) => count > 0);
    return parts.slice(first, first + 2).filter(([count]) => count > 0).map(([count, unit]) => count + " " + unit).join(" ");
  };
  const axisFormat = { step: wholeNumber, tokens: shortNumber, seconds: duration };
  const precise = (value) => (Math.abs(value) >= 1e5 ? wholeNumber(value) : trim(value.toPrecision(6)));

  const CHARTS = [
    { key: "loss", title: "Loss", unit: "nats per token", log: true, smooth: true, wide: true, evaluations: true,
      skipped: true, format: precise },
    { key: "grad_norm", title: "Gradient norm", unit: "before clipping", log: true, smooth: true, format: precise },
    { key: "learning_rate", title: "Learning rate", unit: "", log: true, fromZero: true, format: precise },
    { key: "tokens_per_second", title: "Throughput", unit: "tokens/s", smooth: true, fromZero: true,
      format: (value) => precise(value) + " tokens/s", tick: shortNumber },
    { key: "step_seconds", title: "Step time", unit: "seconds", smooth: true, fromZero: true,
      format: (value) => trim(value.toPrecision(4)) + " s" },
  ];

  const state = { x: "step", smooth: 0, log: new Set(), hidden: new Set(), range: null, cursor: null };

  // ---- small helpers ----

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (key in made && key !== "list" && typeof value !== "string") made[key] = value;
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };
  const shape = (name, attributes) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const color = (run) => "var(--run-" + (run % 8) + ")";
  const shown = () => runs.map((run, index) => index).filter((index) => !state.hidden.has(index));

  // The index whose x is nearest; xs rise.
  const nearest = (xs, x) => {
    let low = 0;
    let high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle; else high = middle;
    }
    return high < 0 ? -1 : Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };

  // An exponential moving mean that starts without bias towards 0; gaps stay gaps.
  const smoothed = (values, weight) => {
    if (weight <= 0) return values;
    let mean = 0;
    let mass = 0;
    return values.map((value) => {
      if (value === null) return null;
      mean = weight * mean + (1 - weight) * value;
      mass = weight * mass + (1 - weight);
      return mean / mass;
    });
  };

  const niceTicks = (low, high, count) => {
    const span = high - low || 1;
    const raw = span / count;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
    const ticks = [];
    for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; ++index) {
      ticks.push(Math.abs(index * step) < step * 1e-9 ? 0 : index * step);
    }
    return ticks;
  };
  // Steps that are round in powers of two, for bytes.
  const byteTicks = (high, count) => {
    let step = 2 ** Math.ceil(Math.log2(Math.max(high, 1) / count));
    if (step * 0.75 * count >= high && step >= 4) step *= 0.75;
    const ticks = [];
    for (let value = 0; value <= high * 1.0001; value += step) ticks.push(value);
    return ticks;
  };
  const logTicks = (low, high) => {
    const first = Math.floor(Math.log10(low));
    const last = Math.ceil(Math.log10(high));
    const factors = last - first <= 2 ? [1, 2, 3, 5, 7] : last - first <= 5 ? [1, 3] : [1];
    const stride = Math.max(1, Math.ceil((last - first) / 8));
    const ticks = [];
    for (let power = first; power <= last; power += stride) {
      for (const factor of factors) {
        const value = factor * 10 ** power;
        if (value >= low * 0.9999 && value <= high * 1.0001) ticks.push(value);
      }
    }
    // Little more than one step of the scale: even steps say more.
    return ticks.length >= 3 ? ticks : niceTicks(low, high, 4).filter((value) => value > 0);
  };

  // ---- one chart ----

  class Chart {
    constructor(spec) {
      this.spec = spec;
      this.id = spec.key;
      this.tools = element("div", { class: "tools" });
      this.legend = element("div", { class: "legend" });
      this.svg = shape("svg", { role: "img", tabindex: "0" });
      this.tooltip = element("div", { class: "tooltip", hidden: true });
      this.values = element("div", { class: "values", hidden: true });
      this.figure = element("figure", { class: "chart" + (spec.wide ? " wide" : ""), id: "chart-" + spec.key },
        element("figcaption", {}, element("h3", {}, spec.title, element("small", {}, spec.unit)), this.tools),
        this.legend, this.svg, this.values, this.tooltip);
      if (spec.log) {
        this.logBox = element("input", { type: "checkbox", onchange: () => {
          if (this.logBox.checked) state.log.add(this.id); else state.log.delete(this.id);
          keepState();
          this.draw();
        } });
        this.tools.append(element("label", {}, this.logBox, "log scale"));
      }
      this.tools.append(element("button", { type: "button", "aria-expanded": "false", onclick: (event) => {
        this.values.hidden = !this.values.hidden;
        event.target.setAttribute("aria-expanded", String(!this.values.hidden));
        this.fillTable();
      } }, "values"));
      this.listen();
    }

    // What the chart draws: [{run, label, color, x, y, low, high}]; filled by subclasses in their way.
    series() {
      return shown().filter((run) => runs[run][this.id]).map((run) => ({
        label: runs[run].name, color: color(run), x: runs[run][state.x], y: runs[run][this.id].mean,
        low: runs[run][this.id].low, high: runs[run][this.id].high,
        evaluations: this.spec.evaluations ? runs[run].evaluations.filter((entry) => entry.loss !== null) : [],
      }));
    }

    isLog() { return Boolean(this.spec.log) && state.log.has(this.id); }

    size() {
      const box = this.svg.getBoundingClientRect();
      const width = Math.max(240, box.width || 600);
      const height = Math.max(160, box.height || 250);
      return { width, height, left: 62, right: width - 12, top: 10, bottom: height - 26 };
    }

    xRange(series) {
      if (state.range) return state.range;
      let low = Infinity;
      let high = -Infinity;
      for (const one of series) {
        if (one.x.length === 0) continue;
        low = Math.min(low, one.x[0]);
        high = Math.max(high, one.x[one.x.length - 1]);
      }
      if (!(low <= high)) return [0, 1];
      return low === high ? [low - 0.5, high + 0.5] : [low, high];
    }

    yRange(series, [xLow, xHigh]) {
      let low = Infinity;
      let high = -Infinity;
      const isLog = this.isLog();
      const take = (value) => {
        if (value === null || value === undefined || (isLog && value <= 0)) return;
        low = Math.min(low, value);
        high = Math.max(high, value);
      };
      for (const one of series) {
        one.x.forEach((x, index) => {
          if (x < xLow || x > xHigh) return;
          take(one.y[index]);
          if (one.low) { take(one.low[index]); take(one.high[index]); }
        });
        for (const entry of one.evaluations) take(entry.loss);
      }
      if (!(low <= high)) return isLog ? [0.1, 1] : [0, 1];
      if (isLog) {
        const margin = Math.max(1.02, (high / low) ** 0.05);
        return [low / margin, high * margin];
      }
      if (this.spec.fromZero) low = Math.min(0, low);
      const margin = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
      // What cannot be negative does not get room below 0.
      return [low >= 0 ? (this.spec.fromZero ? 0 : Math.max(0, low - margin)) : low - margin, high + margin];
    }

    draw() {
      const series = this.series();
      this.svg.replaceChildren();
      if (this.logBox) this.logBox.checked = state.log.has(this.id);
      const anyValue = series.some((one) => one.y.some((value) => value !== null));
      this.drawLegend(series);
      if (!anyValue) {
        this.showAbsent(series.length > 0 ? "No step has a finite value." : "Not recorded in these runs.");
        return;
      }
      this.absent?.remove();
      this.svg.style.display = "";
      const box = this.size();
      const xs = this.xRange(series);
      const ys = this.yRange(series, xs);
      const isLog = this.isLog();
      const level = (y) => (isLog ? Math.log10(Math.max(y, 1e-300)) : y);
      const [from, to] = [level(ys[0]), level(ys[1])];
      this.place = {
        box, xs,
        x: (x) => box.left + (x - xs[0]) / (xs[1] - xs[0]) * (box.right - box.left),
        y: (y) => box.bottom - (level(y) - from) / (to - from) * (box.bottom - box.top),
        inverse: (pixel) => xs[0] + (pixel - box.left) / (box.right - box.left) * (xs[1] - xs[0]),
      };
      this.svg.setAttribute("viewBox", "0 0 " + box.width + " " + box.height);
      this.svg.setAttribute("aria-label", this.describe(series));
      this.drawAxes(ys);
      const clip = "clip-" + this.id;
      const definitions = shape("defs", {});
      const clipPath = shape("clipPath", { id: clip });
      clipPath.append(shape("rect", { x: box.left, y: box.top - 4, width: box.right - box.left + 4,
        height: box.bottom - box.top + 6 }));
      definitions.append(clipPath);
      this.content = shape("g", { "clip-path": "url(#" + clip + ")" });
      this.svg.append(definitions, this.content);
      this.drawSeries(series);
      this.overlay = shape("g", {});
      this.svg.append(this.overlay);
      if (!this.values.hidden) this.fillTable();
      this.drawCursor();
    }

    showAbsent(text) {
      this.place = null;
      this.svg.style.display = "none";
      this.absent?.remove();
      this.absent = element("p", { class: "absent" }, text);
      this.svg.after(this.absent);
    }

    drawLegend(series) {
      this.legend.replaceChildren();
      if (series.some((one) => one.evaluations.length > 0)) {
        this.legend.append(element("span", {}, "\u25cf evaluation"));
      }
      if (this.spec.skipped && shown().some((run) => runs[run].skipped.length > 0)) {
        this.legend.append(element("span", {}, "\u25b4 skipped step"));
      }
      if (series.some((one) => one.low)) {
        const most = Math.max(...shown().map((run) => runs[run].steps_per_point));
        this.legend.append(element("span", {}, "line: mean of " + (most < 2 ? "1 to 2" : "about " + Math.round(most)) +
          " steps, band: lowest to highest"));
      }
    }

    drawAxes([low, high]) {
      const { box, xs } = this.place;
      const format = this.spec.tick || shortNumber;
      const ticks = this.yTicks(low, high);
      for (const value of ticks) {
        const y = Math.round(this.place.y(value)) + 0.5;
        if (y < box.top - 1 || y > box.bottom + 1) continue;
        this.svg.append(shape("line", { class: "grid", x1: box.left, x2: box.right, y1: y, y2: y }));
        const text = shape("text", { x: box.left - 8, y: y + 4, "text-anchor": "end" });
        text.textContent = format(value);
        this.svg.append(text);
      }
      const count = Math.max(2, Math.floor((box.right - box.left) / 110));
      let xTicks = state.x === "seconds" ? timeTicks(xs[0], xs[1], count) : niceTicks(xs[0], xs[1], count);
      if (state.x === "step") xTicks = xTicks.filter((value) => Number.isInteger(value));
      let lastEnd = -Infinity;
      for (const value of xTicks) {
        const x = this.place.x(value);
        const label = axisFormat[state.x](value);
        const width = label.length * 6.4;
        const middle = Math.min(Math.max(x, box.left + width / 2 - 6), box.right - width / 2 + 8);
        if (middle - width / 2 < lastEnd + 8) continue;
        lastEnd = middle + width / 2;
        this.svg.append(shape("line", { class: "axis", x1: x, x2: x, y1: box.bottom, y2: box.bottom + 4 }));
        const text = shape("text", { x: middle, y: box.bottom + 18, "text-anchor": "middle" });
        text.textContent = label;
        this.svg.append(text);
      }
      this.svg.append(shape("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom + 0.5,
        y2: box.bottom + 0.5 }));
    }

    yTicks(low, high) { return this.isLog() ? logTicks(low, high) : niceTicks(low, high, 5); }

    // Pieces of a line between gaps.
    pieces(xs, ys) {
      const isLog = this.isLog();
      const pieces = [];
      let piece = [];
      xs.forEach((x, index) => {
        const y = ys[index];
        if (y === null || (isLog && y <= 0)) {
          if (piece.length > 0) pieces.push(piece);
          piece = [];
        } else {
          piece.push([this.place.x(x), this.place.y(y)]);
        }
      });
      if (piece.length > 0) pieces.push(piece);
      return pieces;
    }

    drawLine(xs, ys, stroke, extra = "") {
      let path = "";
      for (const piece of this.pieces(xs, ys)) {
        if (piece.length === 1) {
          this.content.append(shape("circle", { class: "dot", cx: piece[0][0], cy: piece[0][1], r: 4, style: "fill:" + stroke }));
          continue;
        }
        path += piece.map(([x, y], index) => (index === 0 ? "M" : "L") + x.toFixed(1) + " " + y.toFixed(1)).join("");
      }
      if (path) this.content.append(shape("path", { class: "line" + extra, d: path, style: "stroke:" + stroke }));
    }

    drawSeries(series) {
      for (const one of series) {
        if (one.low) {
          const upper = this.pieces(one.x, one.high);
          const lower = this.pieces(one.x, one.low);
          let path = "";
          upper.forEach((piece, index) => {
            const back = [...(lower[index] || [])].reverse();
            path += "M" + [...piece, ...back].map(([x, y]) => x.toFixed(1) + " " + y.toFixed(1)).join("L") + "Z";
          });
          this.content.append(shape("path", { class: "band", d: path, style: "fill:" + one.color }));
        }
        const weight = this.spec.smooth ? state.smooth : 0;
        if (weight > 0) this.drawLine(one.x, one.y, one.color, " raw");
        this.drawLine(one.x, smoothed(one.y, weight), one.color);
        for (const entry of one.evaluations) {
          if (this.isLog() && entry.loss <= 0) continue;
          this.content.append(shape("circle", { class: "dot", r: 5, cx: this.place.x(entry[state.x]),
            cy: this.place.y(entry.loss), style: "fill:" + one.color }));
        }
      }
      if (this.spec.skipped) this.drawSkipped();
    }

    drawSkipped() {
      const { box } = this.place;
      for (const run of shown()) {
        for (const entry of runs[run].skipped) {
          const x = this.place.x(entry[state.x]).toFixed(1);
          this.content.append(shape("path", { class: "skipped", style: "fill:" + color(run),
            d: "M" + x + " " + (box.bottom - 8) + "l5 8h-10z" }));
        }
      }
    }

    describe(series) {
      const parts = series.map((one) => {
        const finite = one.y.filter((value) => value !== null);
        if (finite.length === 0) return one.label + ": no finite value";
        return one.label + ": from " + this.spec.format(finite[0]) + " to " + this.spec.format(finite[finite.length - 1]) +
          ", lowest " + this.spec.format(Math.min(...(one.low || finite).filter((value) => value !== null)));
      });
      return this.spec.title + " over " + AXES[state.x] + ". " + parts.join("; ") + ". Arrow keys move along the curve.";
    }

    // [label, colour, text] at the cursor, for the tooltip.
    rowsAt(x) {
      return this.series().map((one) => {
        const index = nearest(one.x, x);
        const value = index < 0 ? null : one.y[index];
        const span = value !== null && one.low && one.low[index] !== one.high[index]
          ? " (" + this.spec.format(one.low[index]) + " to " + this.spec.format(one.high[index]) + ")" : "";
        return { label: one.label, color: one.color, text: value === null ? "not finite" : this.spec.format(value) + span,
          x: index < 0 ? x : one.x[index], y: value };
      });
    }

    drawCursor() {
      if (!this.overlay) return;
      this.overlay.replaceChildren();
      if (state.cursor === null || !this.place) { this.tooltip.hidden = true; return; }
      const { box } = this.place;
      const at = this.place.x(state.cursor);
      if (at < box.left - 1 || at > box.right + 1) { this.tooltip.hidden = true; return; }
      this.overlay.append(shape("line", { class: "cursor", x1: at, x2: at, y1: box.top, y2: box.bottom }));
      const rows = this.rowsAt(state.cursor);
      for (const row of rows) {
        if (row.y === null || row.plain || (this.isLog() && row.y <= 0)) continue;
        this.overlay.append(shape("circle", { class: "dot", r: 4, cx: this.place.x(row.x), cy: this.place.y(row.y),
          style: "fill:" + row.color }));
      }
      if (this.hovered) this.fillTooltip(rows, at);
    }

    fillTooltip(rows, at) {
      const first = rows[0];
      this.tooltip.replaceChildren(
        element("div", { class: "at" }, AXES[state.x] + " " + axisFormat[state.x](first ? first.x : state.cursor)),
        element("table", {}, element("tbody", {}, ...rows.map((row) => element("tr", {},
          element("td", {}, element("i", { class: "swatch", style: "background:" + row.color }), row.label),
          element("td", {}, row.text))))));
      this.tooltip.hidden = false;
      // offsetLeft and offsetTop are for HTML elements only.
      const svg = this.svg.getBoundingClientRect();
      const figure = this.figure.getBoundingClientRect();
      const left = svg.left - figure.left + at * svg.width / this.place.box.width;
      const width = this.tooltip.offsetWidth;
      const roomRight = this.figure.clientWidth - left - 14;
      this.tooltip.style.left = (roomRight >= width ? left + 12 : Math.max(4, left - width - 12)) + "px";
      this.tooltip.style.top = svg.top - figure.top + 8 + "px";
    }

    // About twenty values, for those who cannot see the curve.
    fillTable() {
      const series = this.series();
      this.values.replaceChildren();
      if (series.length === 0) return;
      const xs = series[0].x;
      const count = Math.min(20, xs.length);
      const chosen = Array.from({ length: count }, (_, index) =>
        xs[count === 1 ? 0 : Math.round(index * (xs.length - 1) / (count - 1))]);
      const head = element("tr", {}, element("th", { scope: "col" }, AXES[state.x]),
        ...this.rowsAt(chosen[0]).map((row) => element("th", { scope: "col", class: "number" }, row.label)));
      this.values.append(element("table", {}, element("caption", {}, this.spec.title), element("thead", {}, head),
        element("tbody", {}, ...chosen.map((x) => element("tr", {},
          element("th", { scope: "row" }, axisFormat[state.x](x)),
          ...this.rowsAt(x).map((row) => element("td", { class: "number" }, row.text)))))));
    }

    pointerX(event) {
      const bounds = this.svg.getBoundingClientRect();
      const { box } = this.place;
      const pixel = (event.clientX - bounds.left) * box.width / bounds.width;
      return Math.min(Math.max(this.place.inverse(pixel), this.place.xs[0]), this.place.xs[1]);
    }

    listen() {
      this.svg.addEventListener("pointermove", (event) => {
        if (!this.place) return;
        const x = this.pointerX(event);
        if (this.dragFrom !== undefined) { this.drawChoice(x); return; }
        charts.forEach((chart) => { chart.hovered = chart === this; });
        moveCursor(this.snap(x));
      });
      this.svg.addEventListener("pointerleave", () => { this.hovered = false; this.tooltip.hidden = true; moveCursor(null); });
      this.svg.addEventListener("pointerdown", (event) => {
        if (!this.place || event.button !== 0 || event.pointerType !== "mouse") return;
        this.dragFrom = this.pointerX(event);
        try { this.svg.setPointerCapture(event.pointerId); } catch (error) { /* the pointer has gone already */ }
      });
      this.svg.addEventListener("pointerup", (event) => {
        if (this.dragFrom === undefined) return;
        const ends = [this.dragFrom, this.pointerX(event)].sort((a, b) => a - b);
        this.dragFrom = undefined;
        const whole = this.place.xs[1] - this.place.xs[0];
        if (ends[1] - ends[0] > whole * 0.01) zoom(ends); else this.drawCursor();
      });
      this.svg.addEventListener("dblclick", () => zoom(null));
      this.svg.addEventListener("keydown", (event) => {
        const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity };
        if (event.key === "Escape") { zoom(null); moveCursor(null); return; }
        if (!(event.key in moves) || !this.place) return;
        event.preventDefault();
        const series = this.series();
        const xs = series.length > 0 ? series[0].x : [];
        if (xs.length === 0) return;
        const now = state.cursor === null ? (moves[event.key] < 0 ? xs.length : -1) : nearest(xs, state.cursor);
        const next = Math.min(Math.max(now + moves[event.key], 0), xs.length - 1);
        charts.forEach((chart) => { chart.hovered = chart === this; });
        moveCursor(xs[next]);
        document.getElementById("announce").textContent = this.spec.title + ", " + AXES[state.x] + " " +
          axisFormat[state.x](xs[next]) + ": " + this.rowsAt(xs[next]).map((row) => row.label + " " + row.text).join(", ");
      });
      this.svg.addEventListener("blur", () => { this.hovered = false; this.tooltip.hidden = true; moveCursor(null); });
    }

    // The nearest x that some run has.
    snap(x) {
      let best = null;
      for (const one of this.series()) {
        const index = nearest(one.x, x);
        if (index >= 0 && (best === null || Math.abs(one.x[index] - x) < Math.abs(best - x))) best = one.x[index];
      }
      return best;
    }

    drawChoice(to) {
      const { box } = this.place;
      const [left, right] = [this.place.x(this.dragFrom), this.place.x(to)].sort((a, b) => a - b);
      this.tooltip.hidden = true;
      this.overlay.replaceChildren(shape("rect", { class: "chosen", x: left, width: Math.max(1, right - left), y: box.top,
        height: box.bottom - box.top }));
    }
  }

  // Memory: the classes of one run on top of each other.
  class MemoryChart extends Chart {
    constructor() {
      super({ key: "memory", title: "Memory by class", unit: "peak of each step", format: bytes, tick: bytes, fromZero: true,
        wide: true });
      this.run = Math.max(0, runs.findIndex((run) => run.memory.classes.length > 0));
      if (runs.length > 1) {
        this.choice = element("select", { "aria-label": "Run whose memory is shown", onchange: () => {
          this.run = Number(this.choice.value);
          this.draw();
        } }, ...runs.map((run, index) => element("option", { value: String(index) }, run.name)));
        this.choice.value = String(this.run);
        this.tools.prepend(this.choice);
      }
    }

    series() {
      const run = runs[this.run];
      const x = run[state.x];
      const floor = new Array(x.length).fill(0);
      const layers = run.memory.classes.map((entry) => {
        const bottom = floor.slice();
        entry.bytes.forEach((value, index) => { floor[index] += value || 0; });
        return { label: entry.name, color: "var(--memory-" + entry.name + ")", x, own: entry.bytes, bottom, y: floor.slice(),
          evaluations: [] };
      });
      if (layers.length > 0) return layers;
      return run.memory.total ? [{ label: "total", color: color(this.run), x, own: run.memory.total.mean,
        bottom: floor, y: run.memory.total.mean.map((value) => value || 0), evaluations: [] }] : [];
    }

    total() { return runs[this.run].memory.total; }

    yTicks(low, high) { return byteTicks(high, 5); }

    drawLegend(series) {
      this.legend.replaceChildren(...[...series].reverse().map((one) => element("span", {},
        element("i", { class: "swatch", style: "background:" + one.color }), one.label)));
      if (this.total() && series.length > 1) {
        this.legend.append(element("span", { title: "Every class has its own peak; they need not come together, so the " +
          "stack may be higher than the peak of all" }, "\u2504 peak of all together"));
      }
    }

    drawSeries(series) {
      for (const one of series) {
        const points = one.x.length === 1 ? [this.place.xs[0], this.place.xs[1]] : one.x;
        const at = (values, index) => values[one.x.length === 1 ? 0 : index];
        const upper = points.map((x, index) => [this.place.x(x), this.place.y(at(one.y, index))]);
        const lower = points.map((x, index) => [this.place.x(x), this.place.y(at(one.bottom, index))]).reverse();
        this.content.append(shape("path", { class: "area", style: "fill:" + one.color,
          d: "M" + [...upper, ...lower].map(([x, y]) => x.toFixed(1) + " " + y.toFixed(1)).join("L") + "Z" }));
      }
      const total = this.total();
      if (!total || series.length < 2) return;
      const values = total.high || total.mean;
      const x = series[0].x;
      const pairs = x.length === 1 ? [[this.place.xs[0], values[0]], [this.place.xs[1], values[0]]]
        : x.map((one, index) => [one, values[index]]);
      const known = pairs.filter(([, value]) => value !== null);
      this.content.append(shape("path", { class: "total", d: "M" + known.map(([one, value]) =>
        this.place.x(one).toFixed(1) + " " + this.place.y(value).toFixed(1)).join("L") }));
    }

    describe(series) {
      return "Memory by class of " + runs[this.run].name + ". " + series.map((one) =>
        one.label + " at most " + bytes(Math.max(...one.own.map((value) => value || 0)))).join(", ") + ".";
    }

    rowsAt(x) {
      const rows = this.series().map((one) => {
        const index = nearest(one.x, x);
        return { label: one.label, color: one.color, text: index < 0 ? "" : bytes(one.own[index] || 0), y: null,
          x: index < 0 ? x : one.x[index], plain: true };
      }).reverse();
      const total = this.total();
      if (total && rows.length > 1) {
        const values = total.high || total.mean;
        const index = nearest(runs[this.run][state.x], x);
        if (values[index] !== null && values[index] !== undefined) {
          rows.push({ label: "peak of all", color: "var(--ink)", text: bytes(values[index]), x: rows[0].x, y: null, plain: true });
        }
      }
      return rows;
    }
  }

  function timeTicks(low, high, count) {
    const steps = [1e-3, 2e-3, 5e-3, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600,
      7200, 14400, 21600, 43200, 86400];
    const raw = (high - low) / count;
    const step = steps.find((candidate) => candidate >= raw);
    if (!step) return niceTicks(low, high, count);
    const ticks = [];
    for (let index = Math.ceil(low / step); index * step <= high; ++index) ticks.push(index * step);
    return ticks;
  }

  // ---- what all charts share ----

  function moveCursor(x) {
    state.cursor = x;
    charts.forEach((chart) => chart.drawCursor());
  }
  function zoom(range) {
    state.range = range;
    document.getElementById("whole").hidden = range === null;
    drawAll();
  }
  function drawAll() { charts.forEach((chart) => chart.draw()); }

  function keepState() {
    const parts = [];
    if (state.x !== "step") parts.push("x=" + state.x);
    if (state.smooth > 0) parts.push("smooth=" + state.smooth);
    if (state.log.size > 0) parts.push("log=" + [...state.log].join(","));
    try { history.replaceState(null, "", "#" + parts.join("&")); } catch (error) { /* not from this address */ }
  }
  function readState() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    if (Object.hasOwn(AXES, wanted.get("x") || "")) state.x = wanted.get("x");
    const weight = Number(wanted.get("smooth"));
    if (weight > 0 && weight < 1) state.smooth = weight;
    for (const name of (wanted.get("log") || "").split(",")) if (name) state.log.add(name);
  }

  function makeControls() {
    const controls = document.getElementById("controls");
    const axis = element("select", { onchange: () => { state.x = axis.value; state.range = null;
      document.getElementById("whole").hidden = true; state.cursor = null; keepState(); drawAll(); } },
      ...Object.entries(AXES).map(([value, label]) => element("option", { value }, label)));
    axis.value = state.x;
    const weight = element("output", {}, String(state.smooth));
    const slider = element("input", { type: "range", min: "0", max: "0.99", step: "0.01", oninput: () => {
      state.smooth = Number(slider.value);
      weight.textContent = slider.value;
      keepState();
      drawAll();
    } });
    slider.value = String(state.smooth);
    controls.append(element("label", {}, "Over", axis), element("label", {}, "Smoothing", slider, weight),
      element("button", { type: "button", id: "whole", hidden: true, onclick: () => zoom(null) }, "Show everything"),
      element("span", { class: "hint" }, "Drag over a chart to zoom in, double-click to zoom out."));
    if (runs.length > 1) {
      controls.append(element("div", { class: "runs", role: "group", "aria-label": "Runs shown" },
        ...runs.map((run, index) => {
          const box = element("input", { type: "checkbox", onchange: () => {
            if (box.checked) state.hidden.delete(index); else state.hidden.add(index);
            drawAll();
          } });
          box.checked = true;
          return element("label", {}, box, element("i", { class: "swatch run-" + (index % 8) }), run.name);
        })));
    }
    controls.hidden = false;
  }

  function makeTheme() {
    const button = document.getElementById("theme");
    const themes = ["auto", "light", "dark"];
    let at = 0;
    button.hidden = false;
    button.addEventListener("click", () => {
      at = (at + 1) % themes.length;
      if (at === 0) delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = themes[at];
      button.textContent = "Theme: " + themes[at];
    });
  }

  readState();
  makeControls();
  makeTheme();
  const grid = document.getElementById("charts");
  for (const spec of CHARTS) charts.push(new Chart(spec));
  charts.push(new MemoryChart());
  for (const chart of charts) grid.append(chart.figure);
  drawAll();
  let width = grid.clientWidth;
  new ResizeObserver(() => {
    if (grid.clientWidth === width) return;
    width = grid.clientWidth;
    drawAll();
  }).observe(grid);
  // Says to tests and to tools that all is drawn.
  document.documentElement.dataset.report = "ready";
})();
