// An explanation as a page of its own: no scripts, nothing loaded, fit for a frame.

import { format, percent, signed, visible } from "./dom.js";
import { plain, ranked, rowsOfWord, sentence, title } from "./reasons.js";
import { COMMAND, origin } from "./card.js";

const POLICY = "default-src 'none'; style-src 'unsafe-inline'";
const STYLE = `
:root { color-scheme: light dark; --for: #0b6e80; --against: #b8430f; --ink: #1d1b18; --quiet: #655f56; --paper: #fffdf9; --line: #e2dccf; }
@media (prefers-color-scheme: dark) {
  :root { --for: #5cc9d9; --against: #ff9a70; --ink: #ece8e0; --quiet: #a8a196; --paper: #1a1c20; --line: #32353b; }
}
body { background: var(--paper); color: var(--ink); font: 16px/1.5 "Iowan Old Style", Palatino, Georgia, serif; max-width: 56rem;
  margin: 1.5rem auto; padding: 0 1.2rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.3; font-weight: 500; margin: 0 0 .4rem; white-space: pre-wrap; }
h1 mark { background: none; color: var(--for); font-weight: 700; }
p { margin: 0 0 1rem; }
.quiet, summary, footer { color: var(--quiet); font: 13px/1.5 system-ui, sans-serif; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; font: 14px/1.4 system-ui, sans-serif; margin-bottom: 1rem; }
th { text-align: start; font-weight: 400; width: 52%; padding: .15rem .8rem .15rem 0; }
td { padding: .15rem 0; }
td.bits { width: 4.2rem; text-align: end; font-variant-numeric: tabular-nums; }
.total th, .total td { border-top: 1px solid var(--line); font-weight: 700; padding-top: .4rem; }
svg { display: block; width: 100%; height: 14px; }
.for { fill: var(--for); } .against { fill: var(--against); } .zero { fill: var(--line); }
footer { border-top: 1px solid var(--line); padding-top: .6rem; }
code { font-size: .95em; }
`;

export function snapshot(name, model, before, explained, owner) {
  const page = document.implementation.createHTMLDocument(name);
  const make = (tag, properties = {}, ...children) => {
    const made = page.createElement(tag);
    for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const target = visible(explained.parts[0].token) + (explained.parts.length > 1 ? "…" : "");
  const main = ranked(rowsOfWord(explained), target).map((row) => [plain(title(row, target)), row.bits]);
  const all = explained.rows.map((row) => [row.name + (row.counts ? `: ${format(row.counts.count)} of ${format(row.counts.total)}` : ""), row.bits]);
  const table = (rows) => {
    const values = [0, explained.bits, ...rows.map(([, bits]) => bits)];
    const low = Math.min(...values);
    const width = Math.max(...values) - low || 1;
    const bar = (bits) => `<svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true"><rect class="zero" x="${(1000 * -low) / width}" width="2" height="10"/><rect class="${bits < 0 ? "against" : "for"}" x="${(1000 * (Math.min(0, bits) - low)) / width}" width="${(1000 * Math.abs(bits)) / width}" height="10"/></svg>`;
    const made = make("table");
    for (const [words, bits] of [...rows, ["sum = log₂ p", explained.bits]]) {
      const cell = make("td");
      cell.innerHTML = bar(bits); // numbers only
      made.append(make("tr", words.startsWith("sum = ") ? { class: "total" } : {}, make("th", { scope: "row", dir: "auto" }, words), cell, make("td", { class: "bits" }, signed(bits))));
    }
    return made;
  };
  page.documentElement.lang = "en";
  page.head.append(
    make("meta", { charset: "utf-8" }),
    make("meta", { name: "viewport", content: "width=device-width, initial-scale=1" }),
    make("meta", { "http-equiv": "Content-Security-Policy", content: POLICY }),
  );
  page.body.append(
    make("h1", { dir: "auto" }, before.slice(-400), make("mark", {}, explained.word)),
    make("p", { dir: "auto" }, plain(sentence(explained, owner, explained.isWritten))),
    make("p", { class: "quiet" }, `${percent(explained.p)} = 2`, make("sup", {}, signed(explained.bits, 3)), `. The exponent is the sum of these bits; the model (${model}) was ${origin(explained)}.`),
    table(main),
    make("details", {}, make("summary", {}, `All ${all.length} parts`), table(all)),
    make("footer", {}, "Made with saffu: ", make("code", {}, COMMAND)),
  );
  const whole = page.documentElement.outerHTML.replace("</head>", `<style>${STYLE}</style></head>`); // a policy forbids to make it here
  return `<!doctype html>\n${whole}\n`;
}
