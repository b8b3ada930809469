"use strict";
/* Charts as SVG: a faint line for single steps, a strong one for the mean of the last few, a band for its
   interval. Steps are counted from 0 in the data and from 1 where they are shown. */

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 156, LEFT = 48, RIGHT = 12, TOP = 10, BOTTOM = 32;
const FEWEST_SMOOTHED = 20; // a shorter run is not smoothed

function draw(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

/* The 97.5% point of Student's t, by its expansion around the normal distribution's (Fisher and Cornish). */
function t95(freedom) {
  return 1.96 + 2.372 / freedom + 2.823 / freedom ** 2 + 2.556 / freedom ** 3;
}

/* For every step: the mean of the last `width` values, and the 95% interval of that mean over the steps. */
function smoothed(values, width) {
  return values.map((_, i) => {
    const last = values.slice(Math.max(0, i - width + 1), i + 1), n = last.length;
    const mean = last.reduce((a, b) => a + b, 0) / n;
    if (n < 4) return { mean, low: mean, high: mean };
    const spread = Math.sqrt(last.reduce((a, b) => a + (b - mean) ** 2, 0) / (n - 1) / n) * t95(n - 1);
    return { mean, low: mean - spread, high: mean + spread };
  });
}

function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) found.push(value);
  return found;
}

/* A value as text: a share in percent, a number with three digits. */
function shown(value, unit) {
  if (value === null || value === undefined) return "\u2013";
  if (unit === "share") return `${+(100 * value).toFixed(1)}%`;
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  return String(+value.toPrecision(3));
}

/* The lowest and highest value of an axis: shares from 0, numbers from 0 where they come near it. */
function bounds(values, unit) {
  let low = Math.min(...values), high = Math.max(...values);
  if (unit === "share") return [0, [0.05, 0.1, 0.25, 0.5].find((top) => high <= top * 0.96) || 1];
  if (low >= 0 && low < high * 0.6) low = 0;
  const room = high > low ? (high - low) * 0.06 : Math.abs(high) * 0.1 || 1;
  return [low === 0 ? 0 : low - room, high + room];
}

/* A chart: `about` has its name, unit and `lines`, each with its run; `choose(step)` is called on a click. */
class Chart {
  constructor(about, span, tint, hover, choose) {
    Object.assign(this, { about, span, tint, hover, choose });
    this.element = document.createElement("figure");
    this.element.className = "chart";
    this.element.style.margin = "0";
    const title = document.createElement("div");
    title.className = "title";
    const name = document.createElement("h3");
    name.textContent = about.name;
    name.title = about.about ? `${about.name}: ${about.about}` : about.name;
    this.at = document.createElement("span");
    this.at.className = "soft";
    title.append(name, this.at);
    this.legend = document.createElement("ul");
    this.legend.className = "legend";
    this.svg = draw("svg", { height: HEIGHT, role: "img" });
    this.element.append(title, this.legend, this.svg);
    this.series = about.lines.map((line) => this.prepared(line));
    this.svg.addEventListener("pointermove", (event) => hover(this.stepAt(event)));
    this.svg.addEventListener("pointerleave", () => hover(null));
    this.svg.addEventListener("click", (event) => choose(this.stepAt(event)));
  }

  prepared(line) {
    const long = this.about.how === "mean" && line.values.length > FEWEST_SMOOTHED;
    const width = Math.max(5, Math.ceil(line.values.length / 20));
    return { ...line, tint: `tint-${this.tint(line.name)}`, means: long ? smoothed(line.values, width) : null };
  }

  /* Draw for a width in pixels. */
  fit(width) {
    if (!width) return;
    this.width = width;
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const all = this.series.flatMap((s) => [...(s.means ? s.means.map((m) => m.mean) : s.values), ...(s.high || [])]);
    const kept = this.series.flatMap((s) => s.values);
    [this.low, this.high] = bounds(all.length > 400 ? all : all.concat(kept), this.about.unit);
    const [first, last] = this.span;
    this.pad = this.about.how === "measured" ? 14 : 0;
    this.x = (step) => LEFT + this.pad + ((step - first) / Math.max(1, last - first)) * (width - LEFT - RIGHT - 2 * this.pad);
    this.y = (value) =>
      TOP + (1 - (Math.min(Math.max(value, this.low), this.high) - this.low) / (this.high - this.low)) * (HEIGHT - TOP - BOTTOM);
    this.axes(width);
    const beside = (i) => (this.about.how === "measured" ? (i - (this.series.length - 1) / 2) * 5 : 0); // intervals lie side by side
    this.series.forEach((series, i) => this.line(series, beside(i)));
    this.chosenLine = draw("line", { class: "cursor chosen", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }, this.svg);
    this.hoverLine = draw("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }, this.svg);
  }

  axes(width) {
    const base = HEIGHT - BOTTOM;
    for (const value of ticks(this.low, this.high, 3)) {
      draw("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: this.y(value), y2: this.y(value) }, this.svg);
      const label = draw("text", { x: LEFT - 7, y: this.y(value) + 4, "text-anchor": "end" }, this.svg);
      label.textContent = shown(value, this.about.unit);
    }
    const steps = ticks(this.span[0], this.span[1], Math.max(2, Math.floor(width / 75))).filter(Number.isInteger);
    for (const step of steps.length ? steps : [this.span[1]]) {
      const label = draw("text", { x: this.x(step), y: base + 15, "text-anchor": "middle" }, this.svg);
      label.textContent = step;
    }
    const name = draw("text", { x: LEFT + (width - LEFT - RIGHT) / 2, y: HEIGHT - 3, "text-anchor": "middle" }, this.svg);
    name.textContent = this.about.how === "measured" ? "steps of training" : "step";
    for (const bound of this.about.healthy || []) {
      if (bound === null || bound <= this.low || bound >= this.high) continue;
      const line = draw("line", { class: "bound", x1: LEFT, x2: width - RIGHT, y1: this.y(bound), y2: this.y(bound) }, this.svg);
      draw("title", {}, line).textContent = `healthy bound: ${shown(bound, this.about.unit)}`;
    }
  }

  line(series, beside) {
    const { values, means, low, high, tint, run } = series, xs = series.steps.map((step) => this.x(step) + beside);
    const path = (ys) => ys.map((y, i) => `${i ? "L" : "M"}${xs[i].toFixed(1)} ${this.y(y).toFixed(1)}`).join("");
    const lows = means ? means.map((m) => m.low) : low, highs = means ? means.map((m) => m.high) : high;
    const other = run ? " other" : "";
    if (lows && xs.length > 1) {
      const back = lows.map((y, i) => `L${xs[i].toFixed(1)} ${this.y(y).toFixed(1)}`).reverse().join("");
      draw("path", { class: `band ${tint}${low ? " thin" : ""}`, d: `${path(highs)}${back}Z` }, this.svg);
    }
    if (means) draw("path", { class: `raw ${tint}`, d: path(values) }, this.svg);
    draw("path", { class: `mean ${tint}${other}`, d: path(means ? means.map((m) => m.mean) : values) }, this.svg);
    if (means || values.length > 60) return;
    xs.forEach((x, i) => {
      if (low) draw("line", { class: `mean ${tint}`, x1: x, x2: x, y1: this.y(low[i]), y2: this.y(high[i]), opacity: 0.45 }, this.svg);
      draw("circle", { class: `dot ${tint}`, cx: x, cy: this.y(values[i]), r: values.length > 25 ? 2 : 3 }, this.svg);
    });
  }

  stepAt(event) {
    const box = this.svg.getBoundingClientRect(), [first, last] = this.span;
    const share = (((event.clientX - box.left) / box.width) * this.width - LEFT - this.pad) / (this.width - LEFT - RIGHT - 2 * this.pad);
    return Math.round(first + Math.min(1, Math.max(0, share)) * (last - first));
  }

  /* Show the chosen step and the one under the pointer, with the lines' values there. */
  mark(chosen, pointed) {
    if (!this.x) return;
    const place = (line, step) => {
      line.setAttribute("visibility", step === null || step < this.span[0] || step > this.span[1] ? "hidden" : "visible");
      if (step !== null) for (const end of ["x1", "x2"]) line.setAttribute(end, this.x(step));
    };
    place(this.chosenLine, chosen);
    place(this.hoverLine, pointed);
    const step = pointed === null ? chosen : pointed, measured = this.about.how === "measured";
    const word = this.series.some((s) => s.means) ? "mean to step" : measured ? "up to step" : "step";
    this.at.textContent = step === null ? "" : `${word} ${step}`;
    const items = this.series.map((series) => this.entry(series, step));
    this.legend.replaceChildren(...items);
    this.svg.setAttribute("aria-label", `${this.about.name}, ${this.at.textContent}: ${items.map((i) => i.textContent).join("; ")}`);
  }

  entry(series, step) {
    const { steps, values, means, low, high, tint, run, name } = series;
    const item = document.createElement("li");
    const swatch = draw("svg", { viewBox: "0 0 18 10", "aria-hidden": "true" }, this.series.length > 1 ? item : null);
    draw("line", { class: `mean ${tint}${run ? " other" : ""}`, x1: 0, x2: 18, y1: 5, y2: 5 }, swatch);
    const label = document.createElement("span"), value = document.createElement("b");
    label.textContent = [name, series.runName].filter(Boolean).join(", ");
    let i = steps.length - 1;
    if (step !== null) while (i >= 0 && steps[i] > step) i -= 1;
    const exact = this.about.how === "measured" || step === null || steps[i] === step;
    const unit = this.about.unit;
    value.textContent = i < 0 || !exact ? "\u2013" : shown(means ? means[i].mean : values[i], unit);
    if (i >= 0 && exact && low) value.textContent += ` [${Math.round(100 * low[i])}\u2013${Math.round(100 * high[i])}]`;
    item.append(label, value);
    return item;
  }
}
