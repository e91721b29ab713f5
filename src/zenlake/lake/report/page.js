// The page from top to bottom: each part says what it found, or that there was nothing.

// ---- headline

const T = D.total;
const BAD_KINDS = ["source", "dropped"];
function lossOf(kinds) {
  const sum = { records: 0, count: 0, unknown: 0 };
  for (const one of kinds) {
    const found = D.loss.kinds[one];
    if (found) for (const name of Object.keys(sum)) sum[name] += found[name];
  }
  return sum;
}
function tile(name, [big, unit], sub, state) {
  return h("div", { class: "tile" },
    h("dt", null, state ? h("span", { class: "dot " + (state === "ok" ? "" : state) })
      : null, name),
    h("dd", { class: "big" }, big, unit ? h("small", null, unit) : null),
    h("dd", { class: "sub" }, sub));
}
function headline() {
  const seconds = Math.max(1, (R.last - R.first) / 1000);
  const lost = lossOf(BAD_KINDS), all = lossOf(Object.keys(D.loss.kinds));
  const latency = D.latency.count ? span(D.latency.median).split(" ") : ["–", ""];
  const unknown = all.unknown ? plural(all.unknown, "gap") + " of unknown size"
    : "none of unknown size";
  const rates = D.series.count.map((n, i) => n / secondsOf(i)),
    peak = rates.reduce((best, v, i) => v > rates[best] ? i : best, 0);
  const [most, unit] = short(rates[peak] >= 100 ? Math.round(rates[peak]) : rates[peak]);
  const percent = (n, of) => of ? three.format(100 * n / of) + " %" : "0 %";
  $("headline").append(
    tile("Samples", short(T.samples), rate(T.samples / seconds) + " on average"),
    tile("Busiest", [most, unit + "/s"], ["in the " + (WIDTH > 60 ? span(WIDTH) + " from " : "minute of "),
      stamp(binAt(peak), 16)]),
    tile("Payload", size(T.bytes),
      bytes(T.bytes / seconds) + "/s, "
      + (T.samples ? bytes(T.bytes / T.samples) + " a sample" : "no samples")),
    tile("Keys", short(T.keys), num(T.live) + " live now, " + num(T.deleted) + " deleted"),
    tile("Sources", short(T.sources),
      T.sources ? plural(D.sources.publishers, "publisher") : "samples name no source"),
    tile("Latency", [latency[0], latency[1] || ""],
      D.latency.count ? "median; p99 " + span(D.latency.p99) : "samples have no timestamps"),
    tile("Missing samples", short(lost.count), unknown,
      all.records ? (lost.count || all.unknown ? "bad" : "warn") : "ok"),
    tile("Stopped keys", short(D.stopped.all),
      D.stopped.all ? "silent longer than ever" : "all still send", D.stopped.all ? "warn" : "ok"),
    tile("Duplicates", short(T.duplicates),
      percent(T.duplicates, T.samples + T.duplicates) + " of what came",
      T.duplicates ? "warn" : "ok"),
    tile("Decoded", short(D.failed.decoded), plural(D.failed.count, "failure"),
      D.failed.count ? "warn" : "ok"));
  verdict(seconds, lost, all);
}
function verdict(seconds, lost, all) {
  const b = (words) => h("b", null, words);
  const line = [b(count(T.samples) + (T.samples === 1 ? " sample" : " samples")), " of ", b(plural(T.keys, "key")), " in ",
    b(span(seconds)), ". "];
  if (!all.records) line.push("No loss was seen. ");
  else {
    if (lost.count) line.push(b(plural(lost.count, "sample")), lost.count === 1 ? " is" : " are",
      " known to be missing. ");
    if (all.unknown) line.push(b(plural(all.unknown, "time")), " nobody can know how many. ");
    const frames = lossOf(["lane"]).count;
    if (frames) line.push(b(plural(frames, "frame")), " never came on a link. ");
  }
  if (D.stopped.all) line.push(b(plural(D.stopped.all, "key")),
    D.stopped.all === 1 ? " has" : " have", " stopped. ");
  if (D.failed.count) line.push(b(plural(D.failed.count, "payload")), " did not decode.");
  $("verdict").append(...line);
}

// ---- when

const BUTTONS = [["15 min", 900], ["1 h", 3600], ["6 h", 21600], ["1 d", 86400], ["7 d", 604800]];
function rangeButtons() {
  const choices = BUTTONS.filter(([, length]) => length < BINS * WIDTH && length / WIDTH >= 3).map(
    ([name, length]) => [name, Math.ceil(length / WIDTH)]);
  const button = (name, n) =>
    h("button", { type: "button", "aria-pressed": "false", "data-bins": n,
    onclick: () => look(BINS - n, BINS - 1) }, name);
  $("ranges").append(button("All", BINS),
    ...choices.reverse().map(([name, n]) => button("Last " + name, n)));
}
function showRange() {
  const n = view.high - view.low + 1;
  for (const one of $("ranges").children) one.setAttribute("aria-pressed",
    String(+one.dataset.bins === n && view.high === BINS - 1));
  $("shown").textContent = minute(binAt(view.low)) + " to " + minute(binAt(view.high + 1)) + " UTC";
}
function when() {
  const per = (values) => values.map((n, i) => n / secondsOf(i));
  timeChart($("chart-rate"), { title: "Samples per second", area: true, format: count,
    series: [{ name: "samples/s", color: "blue", values: per(D.series.count),
      words: (v, i) => rate(v) + " (" + num(D.series.count[i]) + " of "
      + plural(D.series.keys[i], "key") + ")" }] });
  timeChart($("chart-bytes"), { title: "Payload per second", area: true, format: bytes, step: 1024,
    series: [{ name: "bytes/s", color: "teal", values: per(D.series.bytes),
      words: (v, i) => bytes(v) + "/s (" + bytes(D.series.bytes[i]) + ")" }] });
}

// ---- how well

function latency() {
  const host = $("chart-latency"), L = D.latency;
  if (!L.count) {
    host.append(h("figcaption", null, "Latency"),
      empty("No sample has a timestamp, so nobody knows how long they took.", "warn"));
    $("chart-latency-time").append(h("figcaption", null, "Latency over time"),
      empty("Publishers, or the first router, can stamp samples: timestamping/enabled.", "warn"));
    return;
  }
  const bars = L.bars, top = Math.max(...bars.map((one) => one[2]));
  caption(host, "Latency: from the sample's timestamp to its reception",
    [{ name: plural(L.count, "sample"), color: "violet" }]);
  const place = (value, area) => {
    const i = bars.findIndex(([low, high]) => value >= low && value < high),
      w = area.w / bars.length;
    const [low, high] = bars[Math.max(0, i)];
    const part = low * high > 0 ? Math.log(value / low) / Math.log(high / low) : 0.5;
    return area.x + (Math.max(0, i) + Math.max(0, Math.min(1, part))) * w;
  };
  plot(host, "Latency, how many samples took how long", (svg, area) => {
    area = Object.assign({}, area, { y: area.y + 16, h: area.h - 16 });
    const ticks = niceTicks(0, top, 3),
      y = (v) => area.y + area.h * (1 - v / ticks[ticks.length - 1]), w = area.w / bars.length;
    yAxis(svg, area, ticks, y, count);
    let shown = -Infinity;
    bars.forEach(([low, high, n], i) => {
      const x = area.x + i * w;
      if (n) svg.append(s("rect",
        { class: "block " + (high <= 0 ? "amber" : "violet"), x: x + Math.min(1, w * 0.08),
        width: Math.max(1, w - Math.min(2, w * 0.16)), y: Math.min(y(n), area.y + area.h - 1.5),
        height: Math.max(1.5, area.y + area.h - y(n)), rx: Math.min(2, w / 3) }));
      if (x - shown > 52 && round(low)) {
        svg.append(s("line", { class: "base", x1: x, x2: x, y1: area.y + area.h,
          y2: area.y + area.h + 4 }));
        svg.append(s("text", { x, y: area.y + area.h + 18, "text-anchor": "middle" }, span(low)));
        shown = x;
      }
    });
    svg.append(s("line", { class: "base", x1: area.x, x2: area.x + area.w, y1: area.y + area.h,
      y2: area.y + area.h }));
    // Labels at their lines; side by side where those are close, and never beyond the edge.
    const names = ["median " + span(L.median), "p99 " + span(L.p99)],
      half = names.map((one) => one.length * 3.4);
    const lines = [place(L.median, area), place(L.p99, area)];
    const right = Math.min(lines[1], area.x + area.w + 8 - half[1]),
      left = Math.min(lines[0], right - half[1] - half[0] - 8);
    [left, right].forEach((at, i) => {
      const color = ["blue", "red"][i];
      svg.append(s("line", { class: "mark " + color, x1: lines[i], x2: lines[i], y1: area.y - 4,
        y2: area.y + area.h }));
      svg.append(s("text", { class: "mark-text " + color, x: at, y: area.y - 8,
        "text-anchor": "middle" }, names[i]));
    });
    return { area, n: bars.length, width: w,
      read: (i) => ({ x: area.x + (i + 0.5) * w, marks: [],
      words: [span(bars[i][0]) + " to " + span(bars[i][1]), plural(bars[i][2], "sample"),
      three.format(100 * bars[i][2] / L.count) + " %"] }) };
  });
  if (bars[0][0] < -1e-6) host.append(
    h("p", { class: "hint" }, "Below zero the clock of the sender was ahead of the recorder's."));
  timeChart($("chart-latency-time"), { title: "Latency over time", log: true, format: span,
    series: [{ name: "median", color: "blue", values: D.series.median, words: span },
      { name: "p99", color: "red", values: D.series.p99, words: span }] });
}
// Edges that are whole steps of a decade: 1, 2, 5 of it, or 1 alone where bars are few.
function round(value) {
  const a = Math.abs(value);
  if (a < 1e-6) return false;
  const lead = a / 10 ** Math.floor(Math.log10(a) + 1e-6);
  return [1, 2, 5].some((one) => Math.abs(lead / one - 1) < 0.012);
}

const KINDS = { __proto__: null, // a name from the data finds nothing but these
  source: ["red", "samples", "numbers that a publisher gave its samples and that never came"],
  lane: ["violet", "frames",
    "frames that never came on a link; how many samples they held is unknown"],
  link: ["amber", "", "a link ended, or the recorder was away: what was sent meanwhile is unknown"],
  dropped: ["blue", "samples", "samples that the recorder itself let go"],
};
const chip = (name) => h("span",
  { class: "chip " + (KINDS[name] ? KINDS[name][0] : ""),
  title: KINDS[name] ? KINDS[name][2] : null }, seen(name));
const PRIORITIES = ["control", "real time", "interactive high", "interactive low", "data high",
  "data", "data low", "background"];
const lane = (row) => row[3] === null ? null : (PRIORITIES[row[3]] || row[3])
  + (row[4] === null ? "" : row[4] ? ", reliable" : ", best effort");
function loss() {
  const host = $("loss"), names = Object.keys(D.loss.kinds);
  if (!names.length) { host.append(empty("No loss was seen.")); return; }
  const order = [...Object.keys(KINDS).filter((one) => names.includes(one)),
    ...names.filter((one) => !KINDS[one])];
  const chart = h("figure");
  host.append(chart);
  timeChart(chart, { title: "Records of loss over time", stacked: true, format: count,
    series: order.map((one) =>
      ({ name: seen(one), color: KINDS[one] ? KINDS[one][0] : "teal",
      values: D.loss.kinds[one].series, words: num })) });
  table(host, [
    { name: "Kind", of: (row) => row[0], show: chip, mid: true },
    { name: "What it means", of: (row) => KINDS[row[0]] ? KINDS[row[0]][2] : "", left: true,
      wide: "w1" },
    { name: "Records", of: (row) => row[1].records, show: num },
    { name: "Missing", of: (row) => row[1].count || (row[1].unknown ? null : 0),
      show: (v, row) => num(v) + " " + (KINDS[row[0]] ? KINDS[row[0]][1] : ""), none: "unknown" },
    { name: "Unknown", of: (row) => row[1].unknown, show: zeroed },
  ], order.map((one) => [one, D.loss.kinds[one]]), { noun: "kind" });
}
function lanes() {
  const host = $("lanes");
  if (!D.loss.rows.length) { host.append(empty("No lane, link or source lost anything.")); return; }
  table(host, [
    { name: "Kind", of: (row) => row[0], show: chip, mid: true },
    { name: "Node or source", of: (row) => row[1], show: id, left: true, none: "the recorder" },
    { name: "Entity", of: (row) => row[0] === "source" ? row[2] : null, show: num, wide: "w1" },
    { name: "Lane", of: (row) => row[0] === "lane" ? lane(row) : null, show: seen, mid: true,
      wide: "w1" },
    { name: "Records", of: (row) => row[5], show: num },
    { name: "Missing", of: (row) => row[6], show: num, none: "unknown" },
    { name: "First", of: (row) => row[8], show: stamp, wide: "w2" },
    { name: "Last", of: (row) => row[9], show: stamp, wide: "w1" },
  ], D.loss.rows, { all: D.loss.all, noun: "lane or link" });
}
function silence() {
  const host = $("silence"), S = D.stopped;
  if (!S.all) { host.append(
    empty("Every key that sent regularly still does" + (S.deleted ? ", or was deleted." : ".")));
    return; }
  host.append(h("p", { class: "hint" },
    "Keys that are silent for longer than ever before and for more than five of their intervals, "
    + "until " + clock(R.last) + " UTC."));
  table(host, [
    { name: "Key", of: (row) => row[0], show: key, left: true },
    { name: "Last seen", of: (row) => row[1], show: stamp, wide: "w1" },
    { name: "Silent for", of: (row) => row[2], show: span, alert: () => true },
    { name: "Expected every", of: (row) => row[3], show: span },
    { name: "Longest before", of: (row) => row[4], show: span, wide: "w2" },
  ], S.rows, { all: S.all, noun: "key" });
}
function duplicates() {
  const host = $("duplicates");
  const rows = K.key.map((_, i) => i).filter((i) => K.duplicates[i]).sort(
    (a, b) => K.duplicates[b] - K.duplicates[a]);
  if (!T.duplicates) { host.append(empty("No sample came twice.")); return; }
  host.append(h("p", { class: "hint" },
    "Samples whose number had come before. Tables hold each once."));
  table(host, [
    { name: "Key", of: (i) => K.key[i], show: key, left: true },
    { name: "Duplicates", of: (i) => K.duplicates[i], show: num },
    { name: "Of its samples", of: (i) => K.duplicates[i] / (K.count[i] + K.duplicates[i]),
      show: (v) => three.format(100 * v) + " %", wide: "w1" },
  ], rows, { noun: "key" });
}
function failed() {
  const host = $("failed"), F = D.failed;
  if (!F.count) { host.append(
    empty(F.decoded ? "All " + num(F.decoded) + " payloads decoded."
    : "Nothing was decoded: the lake has no messages yet.", F.decoded ? "" : "warn")); return; }
  const top = Math.max(...F.rows.map((row) => row[2]));
  table(host, [
    { name: "Reason", of: (row) => row[0], left: true, show: (v, row) => {
      const bar = h("i");
      bar.style.width = Math.max(2, 100 * row[2] / top) + "%";
      return [text(v), row[1] ? h("span", { class: "muted" }, " (" + seen(row[1]) + ")") : null,
        h("span", { class: "share", "aria-hidden": "true" }, bar)];
    } },
    { name: "Payloads", of: (row) => row[2], show: num },
    { name: "For example", of: (row) => row[3], show: key, left: true, wide: "w1" },
  ], F.rows, { all: F.all, noun: "reason" });
}

// ---- from whom

function sources() {
  const host = $("sources"), S = D.sources;
  if (!S.count.length) { host.append(empty("Nobody sent anything in this time.", "warn")); return; }
  const rows = S.count.map((_, i) => i);
  table(host, [
    { name: "Source", of: (i) => S.id[i], show: id, left: true,
      none: "without source information" },
    { name: "Entity", of: (i) => S.entity[i], show: num, wide: "w1" },
    { name: "Keys", of: (i) => S.keys[i],
      show: (v, i) => h("span", { title: seen(S.example[i]) }, num(v)) },
    { name: "Example", of: (i) => S.example[i], show: key, left: true, wide: "w3" },
    { name: "Samples", of: (i) => S.count[i], show: count },
    { name: "Payload", of: (i) => S.bytes[i], show: bytes, wide: "w1" },
    { name: "Gaps", hint: GAPS, of: (i) => S.gaps[i], show: zeroed, alert: (v) => v > 0 },
    { name: "Duplicates", of: (i) => S.duplicates[i], show: zeroed, wide: "w2" },
    { name: "First seen", of: (i) => S.first[i], show: stamp, wide: "w3" },
    { name: "Last seen", of: (i) => S.last[i], show: stamp, wide: "w2" },
  ], rows, { all: S.all, noun: "source" });
}
function tables() {
  table($("tables"), [
    { name: "Table", of: (row) => row[0], show: key, left: true },
    { name: "Rows", of: (row) => row[1], show: num },
    { name: "Size", of: (row) => row[2], show: bytes },
    { name: "Files", of: (row) => row[3], show: num, wide: "w1" },
    { name: "Version", of: (row) => row[4], show: num, wide: "w1" },
  ], D.tables, { noun: "table" });
}

// ---- the page

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
  const set = (on) => { root.dataset.theme = on ? "dark" : "light"; };
  set(dark.matches);
  dark.addEventListener("change", (event) => set(event.matches));
  $("theme").addEventListener("click", () => set(root.dataset.theme !== "dark"));
}
function notices() {
  const cuts = Object.entries(D.left_out).map(([name, ms]) => name + " before " + minute(ms));
  if (!cuts.length) return;
  $("notice").hidden = false;
  $("notice").textContent = "This time holds more than a page is made of. Left out: "
    + cuts.join("; ") + " UTC. Choose a shorter time with --from and --to.";
}
theme();
$("name").textContent = seen(D.lake);
$("title").textContent = "What flowed through " + seen(D.lake);
$("made").append("Made by zenlake " + D.zenlake + " at " + clock(D.made)
  + " UTC. Times are UTC; latencies are exact to about 2 %.");
if (!R) {
  $("covers").textContent = "There is nothing in this lake for the time asked for.";
  for (const one of ["when", "what", "well"]) $(one).hidden = true;
  $("sources").append(empty("Nobody sent anything in this time.", "warn"));
  $("lanes").append(empty("No lane, link or source lost anything."));
  tables();
} else {
  $("covers").textContent = clock(R.first) + " to " + clock(R.last) + " UTC";
  notices(); headline(); rangeButtons(); when(); tree(); latency(); loss(); silence();
    duplicates(); failed(); sources(); lanes(); tables(); showRange();
}
addEventListener("beforeprint", () => look(view.low, view.high));
