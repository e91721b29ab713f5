// The tree of keys: what is in it, what is open, what the filter takes.

// ---- what: the tree of keys

const K = D.keys;
function node(name, path) {
  return { name, path, children: new Map(), leaf: null, rest: null, keys: 0, count: 0, bytes: 0,
    min: Infinity, max: 0, gaps: null, duplicates: 0, last: 0, ticks: null, open: false,
    parent: null };
}
function add(parent, child) {
  parent.keys += child.keys; parent.count += child.count; parent.bytes += child.bytes;
    parent.duplicates += child.duplicates;
  parent.min = Math.min(parent.min, child.min); parent.max = Math.max(parent.max, child.max);
    parent.last = Math.max(parent.last, child.last);
  if (child.gaps !== null) parent.gaps = (parent.gaps || 0) + child.gaps;
  if (child.ticks) parent.ticks = parent.ticks ? parent.ticks.map((n, i) => n + child.ticks[i])
    : child.ticks;
}
function leaf(name, i) {
  const one = node(name, K.key[i]);
  return Object.assign(one,
    { leaf: i, keys: 1, count: K.count[i], bytes: K.bytes[i], min: K.min[i], max: K.max[i],
    gaps: K.gaps[i], duplicates: K.duplicates[i], last: K.last[i], ticks: K.ticks[i],
    median: K.median[i], p99: K.p99[i] });
}
function buildTree() {
  const root = node("", "");
  const branch = (parts) => {
    let at = root;
    for (const part of parts) {
      const path = at === root ? part : at.path + "/" + part;
      if (!at.children.has("/" + part)) at.children.set("/" + part, node(part, path));
      at = at.children.get("/" + part);
    }
    return at;
  };
  K.key.forEach((name, i) => {
    const at = branch(name.split("/"));
    const one = leaf(at.name, i);
    at.children.set(i, one); // no name of a branch, which begin with a slash
  });
  for (const [prefix, keys, n, total] of D.rest) {
    const at = prefix ? branch(prefix.split("/")) : root;
    at.children.set("rest", Object.assign(node("", prefix),
      { rest: keys, keys, count: n, bytes: total }));
  }
  return settle(root);
}
function settle(one) {
  for (const [name, child] of one.children) {
    let settled = settle(child);
    // A branch that holds nothing but one branch or key is shown in one row with it.
    if (settled.leaf === null && settled.rest === null && settled.children.size === 1) {
      const only = settled.children.values().next().value;
      if (only.rest === null) {
        if (only.path !== settled.path) only.name = settled.name + "/" + only.name;
        settled = only;
      }
    }
    settled.parent = one;
    one.children.set(name, settled);
    add(one, settled);
  }
  return one;
}
const GAPS =
  "Numbers missing between the first and the last that a source gave to samples of a key";
const COLUMNS = [
  { name: "Key", of: (n) => n.path, left: true },
  { name: "Samples", of: (n) => n.count, show: count },
  { name: "Rate", of: (n) => n.count,
    show: (n) => rate(n / Math.max(1, (R.last - R.first) / 1000)), wide: "w1" },
  { name: "Payload", of: (n) => n.bytes, show: bytes, wide: "w1" },
  { name: "Size", of: (n) => n.rest !== null || !n.count ? null : n.bytes / n.count,
    show: (v, n) => n.min === n.max ? bytes(v)
    : h("span", { title: bytes(n.min) + " to " + bytes(n.max) }, "⌀ " + bytes(v)), wide: "w2" },
  { name: "Latency", of: (n) => n.leaf === null ? null : n.median,
    show: (v, n) => h("span", { title: "p99 " + span(n.p99) }, span(v)), wide: "w2" },
  { name: "Gaps", hint: GAPS, of: (n) => n.gaps, show: zeroed, alert: (v) => v > 0, wide: "w3" },
  { name: "Last seen", of: (n) => n.rest !== null ? null : n.last,
    show: (v) => h("span", { title: clock(v) + " UTC" },
    R.last - v < 1000 ? "at the end" : span((R.last - v) / 1000) + " before"), wide: "w3" },
  { name: "Over time", of: (n) => n.rest !== null ? null : Math.max(...n.ticks),
    show: (_, n) => spark(n.ticks) },
];
function spark(ticks) {
  const w = 96, height = 22, top = Math.max(1, ...ticks), n = ticks.length;
  const x = (i) => n === 1 ? (i ? w : 0) : i / (n - 1) * w;
  const values = n === 1 ? [ticks[0], ticks[0]] : ticks;
  const line = values.map((v, i) =>
    x(i).toFixed(1) + " " + (height - 1 - v / top * (height - 3)).toFixed(1)).join("L");
  return s("svg", { class: "spark", preserveAspectRatio: "none", viewBox: `0 0 ${w} ${height}`,
    "aria-hidden": "true" },
    s("path", { class: "under", d: `M0 ${height}L${line}L${w} ${height}Z` }),
    s("path", { class: "line", d: "M" + line }));
}
// A filter with a star is a key expression, any other a part of a key.
function matcher(words) {
  const wanted = words.trim();
  if (!wanted) return null;
  if (!wanted.includes("*")) {
    const low = wanted.toLowerCase();
    return { test: (path) => path.toLowerCase().includes(low), part: low };
  }
  // A chunk that is * is any, but none that begins with @; elsewhere * and $* are any letters.
  const literal = (one) => one.replace(/[.+?^${}()|[\]\\]/g, "\\$&");
  const parts = wanted.split("/").map(
    (one) => one === "*" ? /^(?!@)/
    : new RegExp("^" + one.split(/\$?\*/).map(literal).join(".*") + "$", "s"));
  const many = wanted.split("/").map((one) => one === "**");
  const test = (path) => {
    const names = path.split("/");
    let reach = new Set([0]);
    const open = (set) => { for (const i of set) if (many[i]) set.add(i + 1); return set; };
    reach = open(reach);
    for (const name of names) {
      const next = new Set();
      for (const i of reach) {
        if (i >= parts.length) continue;
        if (many[i]) { if (!name.startsWith("@")) next.add(i);
          } else if (parts[i].test(name)) next.add(i + 1);
      }
      reach = open(next);
    }
    return reach.has(parts.length);
  };
  return { test, part: "" };
}
function tree() {
  const host = $("tree");
  if (!K.key.length) { host.append(empty("No key sent anything in this time.", "warn")); return; }
  const root = buildTree(), PAGE = 400;
  let by = 1, down = true, wanted = null, limit = PAGE, current = null;
  // Where columns are hidden (page.css), the row of a key opens to show them.
  const narrow = matchMedia("(max-width: 1080px)");
  const hasDetails = (one) => narrow.matches && one.leaf !== null;
  const body = h("tbody"), more = h("div", { class: "more" });
  const heads = COLUMNS.map(
    (column, i) => h("th", { scope: "col", class: kind(column), title: column.hint },
    h("button", { type: "button",
      onclick: () => { down = by === i ? !down : i !== 0; by = i; draw(); } }, column.name)));
  host.append(h("table", { role: "treegrid", "aria-label": "Keys" },
    h("thead", null, h("tr", null, heads)), body), more);

  const sorted = (one) => [...one.children.values()].sort((a, b) =>
    (a.rest !== null) - (b.rest !== null)
      || compare(COLUMNS[by].of(a), COLUMNS[by].of(b)) * (down ? -1 : 1)
      || compare(a.path, b.path));
  function matches(one) {
    if (one.leaf !== null) return wanted.test(K.key[one.leaf]);
    return [...one.children.values()].some(matches);
  }
  function visible() {
    const found = [];
    const walk = (one, level) => {
      for (const child of sorted(one)) {
        if (wanted && !matches(child)) continue;
        found.push([child, level]);
        if (child.children.size && (child.open || wanted)) walk(child, level + 1);
      }
    };
    walk(root, 1);
    return found;
  }
  function nameCell(one, level, inner) {
    const badge = one.rest !== null ? null : inner ? plural(one.keys, "key") : K.encoding[one.leaf];
    const label = one.rest !== null ? "and " + plural(one.rest, "more key") : seen(one.name);
    const words = h("bdi", { class: inner ? "branch" : null }, highlighted(label, one),
      inner ? "/" : null);
    const box = h("div", { class: "node" },
      h("span", { class: "twist", "aria-hidden": "true" }, inner || hasDetails(one) ? "▶" : ""),
      h("span", null, words, badge ? h("span", { class: "badge" }, seen(badge)) : null));
    box.style.paddingLeft = (level - 1) * (innerWidth < 600 ? 10 : 18) + "px";
    return h("td", { class: "left",
      title: one.rest !== null ? "Keys with fewer samples, left out of this page"
      : seen(one.path) }, box, hasDetails(one) && one.details ? detailsOf(one) : null);
  }
  function detailsOf(one) {
    return h("dl", { class: "details" }, COLUMNS.filter((column) => column.wide).map((column) => {
      const value = column.of(one), none = value === null || value === undefined;
      return h("div", { class: "in-" + column.wide }, h("dt", null, column.name),
        h("dd", null, none ? "–" : column.show(value, one)));
    }));
  }
  function highlighted(label, one) {
    const at = wanted && wanted.part && one.rest === null
      ? label.toLowerCase().indexOf(wanted.part) : -1;
    if (at < 0) return label;
    const end = at + wanted.part.length;
    return [label.slice(0, at), h("mark", null, label.slice(at, end)), label.slice(end)];
  }
  function rowOf([one, level]) {
    const inner = one.children.size > 0;
    const row = h("tr", {
      role: "row", tabindex: one === current ? "0" : "-1", "aria-level": level,
        class: one.rest !== null ? "rest" : null,
      "aria-expanded": inner ? String(Boolean(one.open || wanted))
        : hasDetails(one) ? String(Boolean(one.details)) : null,
      onclick: () => { current = one; if (!String(getSelection())) toggle(one); },
    }, nameCell(one, level, inner), COLUMNS.slice(1).map((column) => cell(column, one)));
    row._node = one;
    return row;
  }
  function toggle(one, to) {
    if (hasDetails(one)) one.details = to === undefined ? !one.details : to;
    else if (wanted || !one.children.size) return;
    else one.open = to === undefined ? !one.open : to;
    draw();
    focus();
  }
  const focus = () => { for (const row of body.children) if (row._node === current) row.focus(
    { preventScroll: false }); };
  function draw() {
    heads.forEach((one, i) =>
      i === by ? one.setAttribute("aria-sort", down ? "descending" : "ascending")
      : one.removeAttribute("aria-sort"));
    const found = visible(), shown = found.slice(0, limit);
    if (!shown.some(([one]) => one === current)) current = shown.length ? shown[0][0] : null;
    body.replaceChildren(...shown.map(rowOf));
    more.replaceChildren();
    if (!found.length) more.append("No key that this page shows matches.");
    if (found.length > shown.length) more.append(
      "and " + plural(found.length - shown.length, "more row"),
      h("button", { type: "button", onclick: () => { limit += PAGE; draw(); } }, "Show more"));
    more.hidden = !more.childNodes.length;
  }
  body.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr"), one = row && row._node;
    if (!one) return;
    const inner = one.children.size > 0;
    const go = (to) => { if (to) { row.tabIndex = -1; to.tabIndex = 0; current = to._node;
      to.focus(); } };
    const parent = () => { for (const other of body.children) if (
      other._node === one.parent) return other; return null; };
    const acts = {
      ArrowDown: () => go(row.nextElementSibling), ArrowUp: () => go(row.previousElementSibling),
      Home: () => go(body.firstElementChild), End: () => go(body.lastElementChild),
      ArrowRight: () => { current = one;
        if (inner ? !one.open : hasDetails(one)) toggle(one, true);
        else if (inner) go(row.nextElementSibling); },
      ArrowLeft: () => { current = one; if (inner ? one.open : hasDetails(one) && one.details) toggle(one, false);
        else go(parent()); },
      Enter: () => { current = one; toggle(one); }, " ": () => { current = one; toggle(one); },
    };
    if (acts[event.key]) { acts[event.key](); event.preventDefault(); }
  });
  const all = (one, to) => { one.open = to;
    for (const child of one.children.values()) all(child, to); };
  $("open-all").addEventListener("click", () => { all(root, true); draw(); });
  $("close-all").addEventListener("click", () => { all(root, false); draw(); });
  $("filter").addEventListener("input",
    (event) => { wanted = matcher(event.target.value); limit = PAGE; draw(); });

  narrow.addEventListener("change", draw);

  // Open as many levels as still fit on a screen.
  for (let level = [root], n = 0; level.length;) {
    const next = level.flatMap((one) => [...one.children.values()]);
    n += next.length;
    if (n > 24 && level[0] !== root) break;
    for (const one of level) one.open = true;
    level = next.filter((one) => one.children.size);
    if (n > 24) break;
  }
  draw();
}
