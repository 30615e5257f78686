// An explanation as a picture: an SVG of 1200 × 630, the size in which pages show pictures of links.

import { PICTURES, drawn, percent, signed } from "./dom.js";
import { plain, reasons } from "./reasons.js";

const INK = "#1d1b18";
const QUIET = "#655f56";
const FOR = "#0b6e80";
const SERIF = "Iowan Old Style, Palatino, Georgia, Noto Serif, serif";
const SANS = "system-ui, Segoe UI, Noto Sans, sans-serif";
const MOST_TEXT = 150; // characters of the prompt
export const COMMAND = "saffu play";

// How the model was made.
export const origin = ({ rows }) => (rows.some(({ name }) => name === "network") ? "counted and trained" : "counted, not trained");

const measure = document.createElement("canvas").getContext("2d");

const text = (x, y, size, words, properties = {}) => drawn("text", { x, y, "font-size": size, fill: INK, "font-family": SANS, ...properties }, words);

// Words in lines of some width; a word that is too long is broken.
function wrapped(words, font, width) {
  measure.font = font;
  const fits = (line) => measure.measureText(line).width <= width;
  const lines = [""];
  for (const word of words.split(/\s+/).filter(Boolean)) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (fits(longer)) lines[lines.length - 1] = longer;
    else if (fits(word)) lines.push(word);
    else for (const letter of ` ${word}`) fits(lines.at(-1) + letter) ? (lines[lines.length - 1] += letter) : lines.push(letter);
  }
  return lines.filter(Boolean);
}

function shortened(words, font, width) {
  const [first, ...others] = wrapped(words, font, width);
  return others.length ? `${first}…` : (first ?? "");
}

// The prompt with its word at the end, in as large a size as fits into three lines.
function prompt(before, word) {
  const start = before.length > MOST_TEXT ? `…${before.slice(-MOST_TEXT).replace(/^\S*\s/, "")}` : before;
  for (const size of [76, 64, 54, 46, 38]) {
    const lines = wrapped(`${start} ${word}`, `${size}px ${SERIF}`, 1060);
    if (lines.length > (size > 50 ? 2 : 3) && size > 38) continue;
    const top = 112 + (210 - 1.22 * size * Math.min(4, lines.length)) / 2; // in the middle of the space above the reasons
    return lines.slice(-4).map((line, place, all) => {
      const isLast = place === all.length - 1;
      const end = isLast && line.endsWith(word) ? word : "";
      const begin = line.slice(0, line.length - end.length);
      return text(70, top + size * (0.95 + 1.22 * place), size, begin, { "font-family": SERIF, "xml:space": "preserve" }).appendChild(drawn("tspan", { fill: FOR, "font-weight": 700 }, end)).parentNode;
    });
  }
}

export function card(explained, before, owner) {
  const found = reasons(explained, owner).slice(0, 3);
  const most = Math.max(1, ...found.map(({ bits }) => bits));
  const rows = found.flatMap(({ bits, phrase }, place) => {
    const y = 420 + 46 * place;
    return [
      drawn("rect", { x: 70, y: y - 22, width: Math.max(4, (190 * bits) / most).toFixed(1), height: 26, rx: 4, fill: FOR, opacity: 0.85 }),
      text(280, y, 24, `${signed(bits)}`, { fill: QUIET, "font-variant-numeric": "tabular-nums" }),
      text(370, y, 26, shortened(plain(phrase), `26px ${SERIF}`, 760), { "font-family": SERIF }),
    ];
  });
  const because = `${percent(explained.p)} likely; ${found.length ? "its strongest reasons, in bits:" : "nothing right before it suggests it."}`;
  return drawn(
    "svg",
    { xmlns: PICTURES, viewBox: "0 0 1200 630", width: 1200, height: 630, role: "img", "aria-label": `Why ${explained.word}?` },
    drawn("rect", { width: 1200, height: 630, fill: "#f7f4ee" }),
    drawn("rect", { x: 28, y: 28, width: 1144, height: 574, rx: 22, fill: "#fffdf9", stroke: "#e2dccf", "stroke-width": 2 }),
    drawn("circle", { cx: 82, cy: 82, r: 12, fill: FOR }),
    drawn("path", { d: "M82 82 V70 A12 12 0 0 0 70 82 Z", fill: "#f0a020" }),
    text(106, 91, 28, "saffu", { "font-family": SERIF, "font-weight": 700 }),
    ...prompt(before, explained.word),
    text(70, 372, 24, because, { fill: QUIET }),
    ...rows,
    text(70, 572, 24, COMMAND, { "font-family": "ui-monospace, DejaVu Sans Mono, monospace", fill: FOR }),
    text(1130, 572, 22, origin(explained), { fill: QUIET, "text-anchor": "end" }),
  );
}

export const svgFile = (picture) => new Blob([new XMLSerializer().serializeToString(picture)], { type: "image/svg+xml" });

export async function pngFile(picture) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(picture))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 1200;
  canvas.height = 630;
  canvas.getContext("2d").drawImage(image, 0, 0);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
