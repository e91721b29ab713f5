// Charts: bins of time and bars, how they are drawn, pointed at and looked closer into.

// ---- the span: bins, and which of them are looked at

const R = D.range;
const BINS = R ? R.bins : 0;
const WIDTH = R ? R.width : 60;
const binAt = (i) => R.from + i * WIDTH * 1000;
const view = { low: 0, high: BINS - 1 };
const charts = [];
function look(low, high) {
  view.low = Math.max(0, Math.min(low, BINS - 1));
  view.high = Math.max(view.low, Math.min(high, BINS - 1));
  for (const draw of charts) draw();
  showRange();
}
function secondsOf(i) {
  const edges = D.series.seconds;
  if (i === 0 && edges.length) return edges[0];
  return i === BINS - 1 && edges.length ? edges[1] : WIDTH;
}

// ---- scales

function niceTicks(low, high, wanted, step) {
  if (!(high > low)) high = low + 1;
  const rough = (high - low) / wanted;
  let unit;
  if (step === 1024) {
    const power = 1024 ** Math.floor(Math.log(Math.max(rough, 1)) / Math.log(1024));
    unit = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024].find((n) => n * power >= rough) * power;
  } else {
    const power = 10 ** Math.floor(Math.log10(rough));
    unit = [1, 2, 5, 10].find((n) => n * power >= rough * 0.999) * power;
  }
  const found = [];
  for (let n = Math.ceil(low / unit - 1e-9); n * unit <= high + unit * 1e-9;
    n += 1) found.push(n * unit || 0); // not -0
  if (found[found.length - 1] < high) found.push(found[found.length - 1] + unit);
  return found;
}
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 7200, 14400, 43200,
  129600].map((m) => m * 60000);
function timeTicks(from, to, wanted) {
  const step = STEPS.find((one) => (to - from) / one <= wanted) || STEPS[STEPS.length - 1];
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return [found, (at) => at % 86400000 === 0 || step >= 86400000 ? iso(at).slice(5, 10)
    : iso(at).slice(11, 16)];
}

// ---- a plot: what all charts share, which is how values are pointed at

const MARGIN = { top: 10, right: 10, bottom: 24, left: 58 };
function plot(host, name, draw) {
  const box = h("div", { class: "plot", tabindex: "0", role: "group",
    "aria-label": name + ". Left and right arrow keys read values." });
  const tip = h("div", { class: "tip", role: "status", hidden: true });
  host.append(box);
  let drawn = null, at = null, from = null, overlay = null;

  function redraw() {
    const width = Math.max(220, box.clientWidth), height = width < 420 ? 180 : 210;
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
    drawn = draw(svg, { x: MARGIN.left, y: MARGIN.top, w: width - MARGIN.left - MARGIN.right,
      h: height - MARGIN.top - MARGIN.bottom });
    overlay = s("g");
    svg.append(overlay);
    box.replaceChildren(svg, tip);
    box._width = width;
    point(null);
  }
  function point(i) {
    at = i;
    overlay.replaceChildren();
    if (i === null || !drawn || !drawn.n) { tip.hidden = true; return; }
    at = Math.max(0, Math.min(i, drawn.n - 1));
    const { x, marks, words } = drawn.read(at);
    overlay.append(s("line",
      { class: "cross", x1: x, x2: x, y1: drawn.area.y, y2: drawn.area.y + drawn.area.h }));
    for (const [y, color] of marks) overlay.append(
      s("circle", { class: "point " + color, cx: x, cy: y, r: 4 }));
    tip.replaceChildren(...words.map((line, n) => h("div", null, n ? line : h("b", null, line))));
    tip.hidden = false;
    const left = x + 14 + tip.offsetWidth > box._width ? x - 14 - tip.offsetWidth : x + 14;
    tip.style.transform = `translate(${Math.max(0, left)}px, 6px)`;
  }
  const near = (event) => {
    const area = drawn.area, offset = event.clientX - box.getBoundingClientRect().left;
    return Math.max(0, Math.min(drawn.n - 1, Math.floor((offset - area.x) / drawn.width)));
  };
  box.addEventListener("pointermove", (event) => {
    if (!drawn || !drawn.n) return;
    const i = near(event);
    point(i);
    if (from !== null && drawn.zoom) {
      const area = drawn.area, step = drawn.width, low = Math.min(i, from),
        high = Math.max(i, from);
      overlay.append(s("rect",
        { class: "brush", x: area.x + low * step, y: area.y, width: (high - low + 1) * step,
        height: area.h }));
    }
  });
  box.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button === 0 && drawn && drawn.zoom && drawn.n > 1) {
      from = near(event);
      box.setPointerCapture(event.pointerId);
    }
  });
  box.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const i = near(event), low = Math.min(i, from), high = Math.max(i, from);
    from = null;
    if (high > low) drawn.zoom(low, high);
  });
  box.addEventListener("pointercancel", () => { from = null; });
  box.addEventListener("pointerleave", () => { if (document.activeElement !== box) point(null); });
  box.addEventListener("blur", () => point(null));
  box.addEventListener("keydown", (event) => {
    const last = drawn ? drawn.n - 1 : -1;
    const to = { ArrowRight: at === null ? 0 : at + 1, ArrowLeft: at === null ? last : at - 1,
      Home: 0, End: last }[event.key];
    if (to !== undefined && last >= 0) { point(to); event.preventDefault(); }
    if (event.key === "Escape") { look(0, BINS - 1); point(null); }
  });
  new ResizeObserver(() => {
    if (box.clientWidth && box.clientWidth !== box._width) redraw();
  }).observe(box);
  charts.push(redraw);
  redraw();
}

function caption(host, title, series) {
  host.append(h("figcaption", null, title));
  host.append(h("div", { class: "legend" },
    series.map((one) => h("span", { class: one.color || "plain" }, one.name))));
}

function yAxis(svg, area, ticks, y, format) {
  for (const tick of ticks) {
    svg.append(s("line", { class: "grid", x1: area.x, x2: area.x + area.w, y1: y(tick),
      y2: y(tick) }));
    svg.append(s("text", { x: area.x - 8, y: y(tick) + 4, "text-anchor": "end" }, format(tick)));
  }
}

// A chart over the bins that are looked at. series: {name, color, values, words}
function timeChart(host, options) {
  const { title, series, format, stacked, step } = options;
  caption(host, title, series);
  plot(host, title, (svg, area) => {
    const low = view.low, bins = view.high - view.low + 1;
    // A block is as many bins as it takes to be seen.
    const each = stacked ? Math.max(1, Math.ceil(bins * 8 / area.w)) : 1;
    const n = Math.ceil(bins / each);
    const values = series.map((one) => grouped(one.values.slice(low, low + bins), each));
    const all = values.flat().filter((one) => one !== null);
    const top = stacked ? Math.max(0,
      ...values[0].map((_, i) => values.reduce((sum, one) => sum + one[i], 0)))
      : Math.max(0, ...all);
    const bottom = stacked ? 0 : Math.min(0, ...all);
    const log = options.log && all.length && Math.min(...all) > 0 && top / Math.min(...all) > 30;
    let ticks, y;
    if (log) {
      const first = Math.floor(Math.log10(Math.min(...all))), last = Math.ceil(Math.log10(top));
      ticks = Array.from({ length: last - first + 1 }, (_, i) => 10 ** (first + i));
      y = (v) => area.y + area.h * (1 - (Math.log10(v) - first) / Math.max(1, last - first));
    } else {
      ticks = niceTicks(bottom, top || 1, 4, step);
      const a = Math.min(bottom, ticks[0]), b = ticks[ticks.length - 1];
      y = (v) => area.y + area.h * (1 - (v - a) / (b - a));
    }
    yAxis(svg, area, ticks, y, format);
    const width = area.w * each / bins, x = (i) => area.x + (i + 0.5) * width;
    const [marks, label] = timeTicks(binAt(low), binAt(low + bins), Math.max(2, area.w / 80));
    for (const at of marks) {
      const left = area.x + (at - binAt(low)) / (bins * WIDTH * 1000) * area.w;
      if (left < area.x - 1 || left > area.x + area.w + 1) continue;
      svg.append(s("line", { class: "base", x1: left, x2: left, y1: area.y + area.h,
        y2: area.y + area.h + 4 }));
      svg.append(s("text", { x: left, y: area.y + area.h + 18,
        "text-anchor": left > area.x + area.w - 16 ? "end" : "middle" }, label(at)));
    }
    const zero = log ? area.y + area.h : y(0);
    if (stacked || n === 1 || (options.area && n <= 12)) drawBlocks(svg, values, series, n, x, y,
      width, zero, stacked);
    else series.forEach((one, k) =>
      drawLine(svg, values[k], one, x, y, zero, options.area && k === 0));
    svg.append(s("line", { class: "base", x1: area.x, x2: area.x + area.w, y1: zero, y2: zero }));
    return {
      area, n, width,
      zoom: (a, b) => look(low + a * each, Math.min(low + (b + 1) * each, low + bins) - 1),
      read: (i) => ({
        x: x(i),
        marks: stacked ? [] : series.map((one, k) => [values[k][i], one.color]).filter(
          ([v]) => v !== null).map(([v, color]) => [y(v), color]),
        words: [moment(low + i * each, each),
          ...series.map((one, k) =>
          one.name + ": " + (values[k][i] === null ? "–" : one.words(values[k][i], low + i)))],
      }),
    };
  });
}
const moment = (i, n) =>
  minute(binAt(i)) + (n * WIDTH > 60 ? " + " + span(n * WIDTH) : "") + " UTC";
function grouped(values, each) {
  if (each === 1) return values;
  const found = new Array(Math.ceil(values.length / each)).fill(0);
  values.forEach((v, i) => { found[Math.floor(i / each)] += v; });
  return found;
}

function drawBlocks(svg, values, series, n, x, y, width, zero, stacked) {
  const w = Math.min(Math.max(1, width * 0.8), 90);
  const at = new Array(n).fill(0);
  series.forEach((one, k) => {
    for (let i = 0; i < n; i += 1) {
      if (!values[k][i]) continue;
      const low = stacked ? at[i] : 0, top = y(low + values[k][i]), from = stacked ? y(low) : zero;
      svg.append(s("rect", { class: "block " + one.color, x: x(i) - w / 2, width: w,
        y: Math.min(top, from), height: Math.max(1, Math.abs(from - top)),
        rx: Math.min(2, w / 3) }));
      at[i] += values[k][i];
    }
  });
}

function drawLine(svg, values, one, x, y, zero, area) {
  const runs = [];
  let run = null;
  values.forEach((v, i) => {
    if (v === null) { run = null; return; }
    if (!run) { run = []; runs.push(run); }
    run.push([x(i).toFixed(1), y(v).toFixed(1)]);
  });
  for (const points of runs) {
    const line = "M" + points.map((p) => p.join(" ")).join("L");
    if (area) svg.append(s("path",
      { class: "fill " + one.color,
      d: `${line}L${points[points.length - 1][0]} ${zero}L${points[0][0]} ${zero}Z` }));
    svg.append(s("path", { class: "stroke " + one.color, d: line }));
    if (points.length === 1 || values.length <= 40) {
      for (const [cx, cy] of points) svg.append(
        s("circle", { class: "point " + one.color, cx, cy, r: 3 }));
    }
  }
}
