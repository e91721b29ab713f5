// Lists that sort, and that say how much more there is.

// ---- tables: columns {name, of(row), show(value, row), left, wide, none}

function table(host, columns, rows, options) {
  const { all, noun, sort } = Object.assign({ all: rows.length, noun: "row" }, options);
  const PAGE = 25;
  let by = sort === undefined ? null : sort, down = true, limit = PAGE;
  const body = h("tbody"), more = h("div", { class: "more" });
  const heads = columns.map(
    (column, i) => h("th", { scope: "col", class: kind(column), title: column.hint },
    h("button", { type: "button",
      onclick: () => { down = by === i ? !down : !column.left; by = i; draw(); } }, column.name)));
  host.append(h("div", { class: "wide" },
    h("table", null, h("thead", null, h("tr", null, heads)), body)), more);
  function draw() {
    heads.forEach((one, i) =>
      i === by ? one.setAttribute("aria-sort", down ? "descending" : "ascending")
      : one.removeAttribute("aria-sort"));
    const order = by === null ? rows
      : [...rows].sort((a, b) => compare(columns[by].of(a), columns[by].of(b)) * (down ? -1 : 1));
    body.replaceChildren(...order.slice(0,
      limit).map((row) => h("tr", null, columns.map((column) => cell(column, row)))));
    const hidden = rows.length - Math.min(limit, rows.length), beyond = all - rows.length;
    more.replaceChildren();
    if (hidden) more.append("and " + plural(hidden + beyond, "more " + noun),
      h("button", { type: "button", onclick: () => { limit += 4 * PAGE; draw(); } }, "Show more"));
    else if (beyond > 0) more.append(
      "and " + plural(beyond, "more " + noun) + " that this page leaves out");
    more.hidden = !hidden && beyond <= 0;
  }
  draw();
}
const kind = (column) =>
  [column.left ? "left" : "", column.mid ? "mid" : "", column.wide || ""].join(" ").trim() || null;
function cell(column, row) {
  const value = column.of(row), none = value === null || value === undefined;
  const shown = none ? (column.none || "–") : column.show ? column.show(value, row) : seen(value);
  const alert = column.alert && !none && column.alert(value, row);
  return h("td", { class: [kind(column), none ? "none" : "",
    alert ? "alert" : ""].filter(Boolean).join(" ") || null }, shown);
}
function compare(a, b) {
  const none = (v) => v === null || v === undefined;
  if (none(a) || none(b)) return none(a) === none(b) ? 0 : none(a) ? -1 : 1;
  return a < b ? -1 : a > b ? 1 : 0;
}
const empty = (words, color) =>
  h("p", { class: "empty" }, h("span", { class: "dot " + (color || "") }), words);
// Keys break at their slashes first.
const key = (name) => h("bdi", { class: "mono" },
  seen(name).split("/").flatMap((part, i) => i ? ["/", h("wbr"), part] : [part]));
const id = (name) => h("span", { class: "mono", title: seen(name) },
  text(name.length > 16 ? name.slice(0, 8) + "…" + name.slice(-6) : name));
const zeroed = (n) => n ? num(n) : "0";
