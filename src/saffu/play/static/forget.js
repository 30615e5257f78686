// Who says so: the documents behind a word, forgetting them, learning others, and what that changed.

import { byId, complain, element, format, isolated, later, percent, plural, submitting } from "./dom.js";
import { refresh } from "./count.js";
import { again } from "./editor.js";
import { ask } from "./server.js";
import { accept, chosenWord, emit, on, session, subject } from "./session.js";

const MOST_MOVED = 6;
const MOST_SHOWN = 40; // characters of the text that suggestions follow
const FEW = 3; // documents shown at first; as in play.css
let before = null; // the suggestions before the last change: {place, words}
let last = null; // that change: {model, undone, moves}; undone: the change that it undid, moves: {after, words: {word, from, to}} once known

async function findDocuments() {
  const word = chosenWord();
  if (!word) return showDocuments({ documents: [], holding: 0 }, "");
  const { text, ending } = session.place;
  const found = await ask("documents", { model: session.current, text, ending, word });
  if (found && chosenWord() === word) showDocuments(found, word);
}

function showDocuments({ documents, holding }, word) {
  const model = subject();
  const title = holding === 1 ? ["This document says “", isolated(word), "”"] : ["Documents that say “", isolated(word), "”"];
  byId("documents-title").replaceChildren(...(!model.has_texts ? ["Forget a document"] : word ? title : ["Documents"]));
  byId("forget-form").hidden = model.has_texts;
  byId("forget-hint").hidden = !documents.length || model.changes.length > 0 || model.has_network;
  byId("forget-hint").textContent = `Forget ${holding === 1 ? "it" : "one"}, and the model is as if it had never read it.`;
  byId("drop-label").hidden = !model.has_network;
  const items = documents.map((found) => {
    const forget = element("button", { type: "button", className: "danger", textContent: "Forget" });
    forget.ariaLabel = `Forget the document: ${(found.before + found.context + found.word + found.after).slice(0, 80)}`;
    forget.addEventListener("click", () => change("forget", { document: found.number, drop_network: byId("drop-network").checked }, forget));
    const text = element(
      "p",
      { dir: "auto" },
      found.before.replace(/^…\S{0,20}\s/, "… "), // without half a word
      ...marked(found.context),
      ...marked(found.word, "word"),
      found.after.replace(/\s\S{0,20}…$/, " …"),
    );
    return element("li", {}, text, forget);
  });
  if (model.has_texts && word && !items.length) items.push(element("li", { className: "empty" }, "No document contains “", isolated(word), "”."));
  const list = byId("documents");
  const button = element("button", { type: "button", className: "link", textContent: `Show ${items.length - FEW} more` });
  button.addEventListener("click", () => {
    list.classList.add("all");
    button.remove();
    scrollToWords();
    list.children[FEW].querySelector("button").focus();
  });
  const more = element("li", { className: "more" }, `${format(holding)} documents contain it; those that match your text best come first. `);
  if (items.length > FEW) more.append(button);
  if (holding > 1) items.push(more);
  list.classList.remove("all");
  list.replaceChildren(...items);
  scrollToWords();
}

// In a long document, the word may lie below what is shown of it.
function scrollToWords() {
  for (const mark of byId("documents").querySelectorAll("mark.word")) {
    const box = mark.parentElement;
    box.scrollTop = mark.offsetTop - box.offsetTop - box.clientHeight / 2;
  }
}

// Part of a document; the space in front of it is left as it is.
function marked(text, className = "") {
  const word = text.trimStart();
  if (!word) return [text];
  return [text.slice(0, text.length - word.length), element("mark", { className, textContent: word })];
}

// What stands at the place, and what else might.
const shownWords = () => (session.written ? [session.written, ...session.words] : session.words);

async function change(name, body, button = null) {
  complain("");
  if (name === "forget" && subject().has_network && !body.drop_network) {
    complain("a trained network cannot forget; choose to remove it, too, or train it again without the document");
    byId("drop-network").focus();
    return false;
  }
  const { place, current: model } = session;
  const words = shownWords();
  const undone = name === "undo" ? subject().changes.at(-1) : null;
  const isFocused = button && button === document.activeElement;
  if (button) button.disabled = true;
  const state = await ask(name, { model, ...body }, { replace: "change" });
  if (button) button.disabled = false;
  if (!state) return false;
  if (name === "forget") button?.closest("li").remove();
  before = { place, words };
  last = { model, undone, moves: null };
  accept(state);
  emit("models");
  if (isFocused && !byId("type").contains(document.activeElement)) (byId("changed").hidden ? byId("documents-title") : byId("undo")).focus({ preventScroll: true }); // the button is about to go
  again();
  later("refresh", 150, refresh);
  return true;
}

// Once there are suggestions again for the same place: which of them moved.
function compareWords() {
  if (!before || last.model !== session.current || ["value", "caret", "start", "end"].some((name) => session.place[name] !== before.place?.[name])) return;
  const now = new Map(shownWords().map(({ word, p }) => [word, p]));
  const then = new Map(before.words.map(({ word, p }) => [word, p]));
  const all = [...new Set([...then.keys(), ...now.keys()])];
  const words = all
    .map((word) => ({ word, from: then.get(word), to: now.get(word) }))
    .filter(({ from, to }) => percent(from ?? 0) !== percent(to ?? 0))
    .sort((a, b) => Math.abs((b.to ?? 0) - (b.from ?? 0)) - Math.abs((a.to ?? 0) - (a.from ?? 0)))
    .slice(0, MOST_MOVED);
  last.moves = { after: session.place.text.trim().slice(-MOST_SHOWN), words };
  before = null;
  showChanges();
  for (const part of [last.undone ? byId("undone") : byId("changes").firstElementChild, byId("changed")]) part?.scrollIntoView({ block: "nearest" }); // below the fold on a phone
}

function showChanges() {
  const model = subject();
  if (!model) return;
  byId("undo").disabled = !model.can_undo;
  byId("changed").hidden = !model.changes.length;
  const list = byId("changes");
  const step = last?.model === model.id ? last : null;
  const text = JSON.stringify([model.id, model.changes, step]);
  if (list.shown === text) return;
  list.shown = text;
  const newest = model.changes.length - 1;
  const moves = step?.undone ? null : step?.moves; // of the newest change
  list.replaceChildren(...model.changes.map((made, place) => changeItem(model, made, place === newest, moves)).reverse());
  byId("undone").replaceChildren(...(step?.undone ? undoneLines(model, step) : []));
}

// What the last step undid, and what that changed.
function undoneLines(model, { undone, moves }) {
  if (!model.changes.length) return [element("p", { className: "what" }, "Undone: the model is as it was.")];
  const what = {
    forget: () => ["forgetting “", isolated(undone.document), "”"],
    learn: () => ["learning “", isolated(undone.document), "”"],
    recount: () => ["the recount with a fresh tokenizer"],
  }[undone.kind]();
  return [element("p", { className: "what" }, "Undone: ", ...what), ...(moves ? movedWords(undone, moves, true) : [])];
}

function changeItem(model, made, isNewest, moves) {
  const state = made.failed ? "failed" : made.equal === null ? "open" : made.equal ? "equal" : "different";
  const item = element("li", { className: state });
  const what = {
    forget: () => ["Forgot “", isolated(made.document), "”"],
    learn: () => ["Learned “", isolated(made.document), "”"],
    recount: () => ["Counted the remaining documents with a fresh tokenizer. It spells words in other pieces, so the numbers differ."],
  }[made.kind]();
  item.append(element("p", { className: "what" }, ...what));
  if (isNewest && moves) item.append(...movedWords(made, moves, false));
  if (made.vanished.length) item.append(element("p", { className: "vanished" }, "No longer in any document: ", ...separated(made.vanished, 12)));
  item.append(prints(model, made, state));
  if (made.pieces.length && isNewest) item.append(remains(made.pieces, model.has_texts));
  return item;
}

function movedWords(made, moves, isUndone) {
  const it = isUndone ? "Undoing it" : "It";
  const after = moves.after ? [" after “", isolated(moves.after), "”"] : [];
  if (!moves.words.length) return [element("p", { className: "vanished" }, `${it} changed no suggestion`, ...after, ".")];
  const list = element("ul", { className: "moves" });
  for (const { word, from, to } of moves.words) {
    const isVanished = made.vanished.includes(word);
    const gone = !isUndone && to === undefined && isVanished;
    const then = from !== undefined ? percent(from) : isUndone && isVanished ? "gone" : "new";
    const now = gone ? "gone" : to === undefined ? "off the list" : percent(to);
    const rises = (to ?? 0) > (from ?? 0);
    list.append(
      element("li", { className: gone ? "gone" : rises ? "up" : "down" }, isolated(word), " ", element("span", { className: "p", textContent: `${then} → ${now}` })),
    );
  }
  return [element("p", { className: "vanished" }, `${it} changed what is suggested`, ...after, ":"), list];
}

function separated(words, most) {
  const nodes = words.slice(0, most).flatMap((word) => [isolated(word, "i"), ", "]);
  nodes.pop();
  return words.length > most ? [...nodes, ` and ${format(words.length - most)} more`] : nodes;
}

// The fingerprints: what the model was, what it is, and what counting from scratch gives.
function prints(model, made, state) {
  const print = (hash) => element("code", { textContent: hash.slice(0, 8), title: hash });
  const counted = made.recounted === 1 ? "document" : plural(made.recounted ?? 0, "document");
  const scratch = `Verified: the same, bit for bit, as counting ${made.kind === "forget" ? "only the other" : "all"} ${counted} from scratch with ${made.kind === "recount" ? "this fresh" : "the same"} tokenizer and encoder`;
  const says = {
    open: ["Verifying…"],
    equal: ["✓ ", model.has_texts ? scratch : "Verified: undoing it restores the previous model, bit for bit"],
    different: ["Different from counting from scratch: this is a bug; please report it"],
    failed: [made.failed],
  }[state];
  return element("p", { className: "verdict" }, ...says, ". Fingerprint of the model: ", print(made.before), " → ", print(made.after));
}

function remains(pieces, hasTexts) {
  const again = element("button", { type: "button", className: "recount served", hidden: !hasTexts, textContent: "Recount with a fresh tokenizer" });
  again.addEventListener("click", () => {
    again.textContent = "Recounting…";
    change("recount", {}, again);
  });
  const named = separated(pieces.map((piece) => piece.trim() || "␣"), 8);
  return element("div", { className: "remains" }, element("p", {}, "Still in the tokenizer, the list of pieces that words are spelled with, but never suggested: ", ...named), again);
}

export function startForget() {
  on("word", findDocuments);
  on("place", compareWords);
  on("models", showChanges);
  byId("undo").addEventListener("click", () => change("undo", {}, byId("undo")));
  submitting("learn-form", async () => {
    if (await change("learn", { text: byId("learn-text").value })) byId("learn-text").value = "";
  });
  submitting("forget-form", async () => {
    const body = { text: byId("forget-text").value, drop_network: byId("drop-network").checked };
    if (await change("forget", body)) byId("forget-text").value = "";
  });
}
