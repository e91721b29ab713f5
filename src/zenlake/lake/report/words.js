"use strict";
// Elements and figures: how texts get onto the page (as text, always) and how numbers are shown.

const D = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

// ---- elements

const SVG = "http://www.w3.org/2000/svg";
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((one) => one !== null && one !== undefined));
  return node;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

// What cannot be seen, or turns the direction of text, is shown by its number.
const UNSEEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const seen = (text) => String(text).replace(
  UNSEEN, (c) => "⟨" + c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0") + "⟩");
const text = (value) => h("bdi", null, seen(value));

// ---- figures as people read them

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const three = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 });
const num = (n) => whole.format(n);
const plural = (n, noun) => num(n) + " " + noun + (n === 1 ? "" : "s");
function scaled(n, step, names) {
  let i = 0;
  while (Math.abs(n) >= 999.5 && i < names.length - 1) { n /= step; i += 1; }
  return [three.format(n), names[i]];
}
const short = (n) => Math.abs(n) < 10000 ? [n % 1 ? three.format(n) : num(n), ""]
  : scaled(n, 1000, ["", "k", "M", "G", "T"]);
const size = (n) => scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const join = (pair) => pair[1] ? pair[0] + " " + pair[1] : pair[0];
const bytes = (n) => join(size(n));
const count = (n) => join(short(n));
const rate = (n) => (n ? count(n) : "0") + "/s";
function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const a = Math.abs(seconds), sign = seconds < 0 ? "−" : "";
  if (a === 0) return "0 s";
  if (a < 1e-3) return sign + three.format(a * 1e6) + " µs";
  if (a < 1) return sign + three.format(a * 1e3) + " ms";
  if (a < 60) return sign + three.format(a) + " s";
  let rest = Math.round(a);
  const parts = [];
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const n = Math.floor(rest / length);
    rest -= n * length;
    if (n) parts.push(n + " " + unit);
  }
  return sign + parts.slice(0, 2).join(" ");
}
const iso = (ms) => new Date(ms).toISOString();
const clock = (ms) => iso(ms).slice(0, 19).replace("T", " ");
const minute = (ms) => iso(ms).slice(0, 16).replace("T", " ");
// In a report of one day the date says nothing.
const stamp = (ms, end = 19) => h("time", { datetime: iso(ms), title: clock(ms) + " UTC" },
  iso(ms).slice(...(iso(D.range.first).slice(0, 10) === iso(D.range.last).slice(0, 10) ? [11, end]
    : [5, end])).replace("T", " "));
