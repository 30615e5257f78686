// Why a word: a sentence, the reasons by size, and the exact sum.

import { byId, element, format, isolated, percent, signed, visible } from "./dom.js";
import { MOST_TYPED, typedText } from "./editor.js";
import { ranked, rowsOfWord, sentence, title } from "./reasons.js";
import { ask } from "./server.js";
import { chosenWord, emit, on, session, subject } from "./session.js";

let piece = -1; // which token of the word is explained; −1 for all of them
let exact = false; // whether every part is shown as the model has it

async function explain() {
  piece = -1;
  const word = chosenWord();
  if (!word || typedText().length > MOST_TYPED) {
    session.explained = null;
    show();
    return;
  }
  const { text, ending } = session.place;
  const why = session.chosen < 0 ? session.written : await ask("why", { model: session.current, text, ending, word });
  if (!why || chosenWord() !== word) return;
  session.explained = { ...why, isWritten: session.chosen < 0 };
  show();
}

const owner = () => (subject()?.name === "your text" ? "your text" : "the text");

// A phrase of reasons.js as nodes.
export function phrased(phrase) {
  return phrase.map((each) => {
    if (typeof each === "string") return each;
    return each.kin.length ? isolated(each.text, "i", { className: "kin", title: `words in similar places: ${each.kin.join(" · ")}` }) : isolated(each.text, "i");
  });
}

function show() {
  const { explained } = session;
  emit("why");
  byId("why-title").replaceChildren(...(explained ? ["Why “", isolated(explained.word), "”?"] : ["Why?"]));
  for (const id of ["why-legend", "sum"]) byId(id).hidden = !explained;
  byId("share-open").disabled = !explained;
  if (!explained) {
    byId("sentence").textContent = "There is no word to explain here; type something else.";
    byId("pieces").replaceChildren();
    byId("sides").hidden = true;
    showBars([], 0, "");
    return;
  }
  byId("sentence").replaceChildren(...phrased(sentence(explained, owner(), explained.isWritten)));
  const { parts } = explained;
  const part = parts[piece];
  const bits = part ? part.bits : explained.bits;
  const members = (part ?? (parts.length === 1 ? parts[0] : null))?.class.map(visible).filter((token) => token !== explained.word);
  const kin = members?.length ? ` Words like it: ${[...new Set(members)].join(", ")}, …` : "";
  byId("why-sum").replaceChildren("Each bit for it makes the word twice as likely, each bit against it half as likely. Together: ", element("b", { textContent: percent(2 ** bits) }), " = 2", element("sup", { textContent: signed(bits, 3) }), ".", kin);
  showPieces(parts);
  showSides(part ?? parts[0]);
  showBars(part ? part.rows : exact ? explained.rows : rowsOfWord(explained), bits, visible(part ? part.token : parts[0].token) + (!part && parts.length > 1 ? "…" : ""));
}

function showPieces(parts) {
  const names = parts.length > 1 ? ["whole word", ...parts.map(({ token }) => visible(token))] : [];
  byId("pieces").replaceChildren(
    ...names.map((name, place) => {
      const button = isolated(name, "button", { type: "button", ariaPressed: String(place - 1 === piece) });
      button.addEventListener("click", () => {
        piece = place - 1;
        show();
        byId("pieces").children[place].focus();
      });
      return button;
    }),
  );
}

// With a network: what each side says, and where the gate between them stands.
function showSides({ sides, token }) {
  byId("sides").hidden = !sides;
  if (!sides) return;
  const [network, counts] = sides;
  byId("gate").style.width = `${100 * network.weight}%`;
  byId("gate-says").replaceChildren(
    `Here, the trained network has a weight of ${percent(network.weight)}, and the counts have the rest. Alone, the network gives `, isolated(visible(token), "i"), ` ${percent(network.p)}, the counts ${percent(counts.p)}.`,
  );
  for (const { name, favorites } of sides) {
    const items = favorites.map(({ word, p }) => element("li", {}, isolated(visible(word)), " ", element("span", { className: "p", textContent: percent(p) })));
    byId(`${name}-says`).replaceChildren(...items);
  }
}

const bars = new Map(); // rows of the table by name, kept so that bars move

function showBars(rows, total, target) {
  const shown = exact ? rows : ranked(rows, target);
  byId("all-parts").textContent = exact ? "Show the main reasons" : `Show all ${rows.length} parts of the exact sum`;
  byId("all-parts").ariaExpanded = String(exact);
  const levels = shown.map((row) => [row.class_bits ?? 0, row.bits - (row.class_bits ?? 0)]);
  const ends = levels.flatMap((pair) => [pair.filter((bits) => bits > 0), pair.filter((bits) => bits < 0)].map((side) => side.reduce((a, b) => a + b, 0)));
  const high = Math.max(1, ...ends, total);
  const low = Math.min(-1, ...ends, total);
  const at = (bits) => (100 * (bits - low)) / (high - low);
  const used = new Set(shown.map((row) => row.name));
  for (const [name, row] of bars) {
    if (!used.has(name)) {
      row.remove();
      bars.delete(name);
    }
  }
  const body = byId("bars").tBodies[0];
  shown.forEach((row, place) => {
    if (!bars.has(row.name)) bars.set(row.name, barRow());
    const made = bars.get(row.name);
    if (body.children[place] !== made) body.insertBefore(made, body.children[place] ?? null);
    drawBar(made, levels[place], at);
    made.querySelector(".bits").textContent = signed(row.bits);
    const name = made.querySelector(".name");
    name.title = row.weight ? `${row.name}, weight ${row.weight.toFixed(2)}` : row.name;
    name.replaceChildren(...(exact ? [row.name, element("span", { className: "evidence" }, ...counted(row, target))] : phrased(title(row, target))));
  });
  const foot = byId("bars").tFoot;
  if (!rows.length) foot.replaceChildren();
  else {
    if (!foot.firstChild) foot.append(barRow());
    foot.querySelector(".name").textContent = exact ? "sum = log₂ p" : "together";
    drawBar(foot.firstChild, [0, total], at);
    foot.querySelector(".bits").textContent = signed(total);
  }
}

function barRow() {
  const track = element("div", { className: "track", ariaHidden: "true" });
  track.append(element("span", { className: "zero" }), element("span", { className: "part class" }), element("span", { className: "part" }));
  return element("tr", {}, element("th", { scope: "row" }, element("span", { className: "name" })), element("td", {}, track), element("td", { className: "bits" }));
}

function drawBar(row, pair, at) {
  const [zero, ...parts] = row.querySelector(".track").children;
  zero.style.left = `${at(0)}%`;
  let up = 0;
  let down = 0;
  pair.forEach((bits, level) => {
    const from = bits < 0 ? down + bits : up;
    if (bits < 0) down += bits;
    else up += bits;
    parts[level].classList.toggle("for", bits > 0);
    parts[level].classList.toggle("against", bits < 0);
    parts[level].style.left = `${at(from)}%`;
    parts[level].style.width = `${at(Math.abs(bits)) - at(0)}%`;
  });
}

// "the → dog 14 of 210" in the exact table.
function counted({ counts, seen }, target) {
  if (!counts) return seen?.[0] === "<pad>" ? ["before the text begins"] : [];
  if (!counts.total) return counts.here ? [] : ["not seen before"];
  const left = isolated(counts.seen.map((tokens) => visible(tokens[0])).join(" ") + (counts.gap ? " …" : ""));
  return [...(counts.seen.length ? [left, " → "] : []), isolated(target), " ", element("b", { textContent: `${format(counts.count)} of ${format(counts.total)}` }), counts.here ? " so far" : ""];
}

export function startWhy() {
  on("word", explain);
  byId("all-parts").addEventListener("click", () => {
    exact = !exact;
    show();
  });
  byId("sum").open = matchMedia("(min-width: 62rem)").matches;
}
