// The editor: surprisals behind the text, the suggestion as ghost text, suggestions for the caret's place, and words that explain
// themselves when the caret moves into them.

import { LEAST_SHOWN, byId, complain, element, format, isolated, later, percent, plural, speak, visible } from "./dom.js";
import { ask } from "./server.js";
import { chosenWord, emit, on, session, subject } from "./session.js";

export const MOST_TYPED = 10_000; // characters, as in answers.py
const WITHOUT_SPACES = / ?[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}ー]+$/u;
const DIRECTIONS = /[\u202a-\u202e\u2066-\u2069]/; // marks whose effect would reach into what is appended
const FEWEST_WORDS = 3; // suggested, however unlikely
const page = Math.random().toString(36).slice(2);
const SLOW = 500; // milliseconds after which what is shown is marked as out of date
const editor = byId("editor");
const mirror = byId("mirror");
const segmenter = globalThis.Intl?.Segmenter ? new Intl.Segmenter(undefined, { granularity: "word" }) : null;

let keystroke = 0; // numbers requests, so that the server drops those that are out of date
let insertAt = -1; // where the caret was when Tab was pressed before the answer came
let leaving = false; // Escape was pressed: then Tab leaves the editor
let spans = []; // of the text, with their surprisals

export const typedText = () => editor.value;

// Ask for suggestions at the caret.
export async function type() {
  if (!subject()) return;
  const value = editor.value;
  const caret = editor.selectionEnd;
  const began = performance.now();
  if (value.length > MOST_TYPED) {
    complain(`this text has ${format(value.length)} characters, but the page accepts at most ${format(MOST_TYPED)}; shorten it`);
    showSpans([]);
    markStale(0);
    return;
  }
  markStale(SLOW);
  keystroke += 1;
  const text = value.slice(0, caret);
  const ending = text.match(WITHOUT_SPACES)?.[0] ?? null;
  const answer = ask("suggest", { model: session.current, text, ending, rest: value.slice(caret), page, number: keystroke });
  showGhost();
  const found = await answer;
  if (!found || found.outdated || editor.value !== value || editor.selectionEnd !== caret) return;
  byId("latency").textContent = `answered in ${Math.round(performance.now() - began)} ms`;
  complain("");
  const words = ending ? nextSegments(found.words, found.typed) : found.words;
  const typed = ending ? "" : found.typed;
  moveTo({ text, ending, value, caret, start: caret - typed.length, end: caret, typed }, words, null);
  showSpans(found.spans);
  showStatus(found);
  insertIfWanted();
}

// Pale until there is an answer to what is typed, if that does not come soon.
const markStale = (milliseconds) => later("stale", milliseconds, () => byId("with-model").classList.add("stale"));

function moveTo(place, words, written) {
  later("stale", 0, () => byId("with-model").classList.remove("stale"));
  session.place = place;
  session.words = words.filter(({ p }, rank) => rank < FEWEST_WORDS || p >= LEAST_SHOWN);
  session.written = written;
  session.chosen = written ? -1 : Math.max(0, session.words.findIndex(({ word }) => word === session.wanted));
  session.wanted = "";
  emit("place");
  showGhost();
  later("word", written ? 0 : 120, () => emit("word"));
}

// In scripts without spaces, a suggestion is the whole sentence: show the word that comes next in it.
function nextSegments(words, typed) {
  const found = new Map();
  for (const { word, p } of words) {
    const ends = segmenter ? [...segmenter.segment(word)].map(({ index, segment }) => index + segment.length) : [word.length];
    const next = word.slice(typed.length, ends.find((end) => end > typed.length));
    if (!next) continue;
    const same = found.get(next) ?? { word: next, p: 0, whole: word };
    found.set(next, { ...same, p: same.p + p });
  }
  return [...found.values()].sort((a, b) => b.p - a.p);
}

// Explain the word around a place in the text, and show what else might stand there.
async function read(offset) {
  const value = editor.value;
  const caret = editor.selectionEnd;
  if (!subject() || value.length > MOST_TYPED) return;
  const found = await ask("read", { model: session.current, text: value.slice(0, offset), rest: value.slice(offset) }, { replace: "suggest" });
  if (!found || editor.value !== value) return;
  if (editor.selectionEnd !== caret) return look(); // it has left the word
  if (!found.word.trim()) return type(); // between words, one may be inserted
  complain("");
  const others = found.words.filter(({ word }) => word !== found.word);
  moveTo({ text: found.before, ending: null, value, caret, start: found.start, end: found.end, typed: "" }, others, found);
  insertIfWanted();
  speak(`${found.word}, ${(-found.bits).toFixed(1)} bits`);
}

// Ask again for what is shown: the model is another one now.
export const again = () => (session.written && isCurrent() ? read(session.place.start) : type());

const isCurrent = () => session.place?.value === editor.value && session.place.caret === editor.selectionEnd;

function insertIfWanted() {
  const isWanted = insertAt === editor.selectionEnd;
  insertAt = -1;
  if (isWanted) insert(Math.max(0, session.chosen));
}

// Put a suggestion into the text, so that the browser can undo it.
export function insert(chosen) {
  const { place, words } = session;
  const word = words[chosen]?.word;
  if (!word || editor.value !== place.value) return;
  const isLast = place.end === place.value.length || (!session.written && !place.value.slice(place.end).trim());
  const inside = !session.written && place.typed ? place.value.slice(place.end).match(/^[\p{L}\p{N}\p{M}]*/u)[0].length : 0;
  const space = session.written || place.ending || /^\s/.test(place.value.slice(place.end + inside)) ? "" : " ";
  editor.focus();
  editor.setSelectionRange(place.start, place.end + inside);
  if (!document.execCommand("insertText", false, word + space)) {
    editor.setRangeText(word + space, place.start, place.end + inside, "end");
    type();
  }
  if (isLast) editor.scrollTop = editor.scrollHeight;
}

export function choose(chosen) {
  session.chosen = Math.max(session.written ? -1 : 0, Math.min(session.words.length - 1, chosen));
  emit("word");
  showGhost();
  const word = chosenWord();
  if (word) speak(`${word}, ${percent(session.chosen < 0 ? session.written.p : session.words[session.chosen].p)}`);
}

function pressed(event) {
  const atEnd = editor.selectionStart === editor.value.length;
  if (event.key === "Escape") leaving = true;
  else if (event.key === "Tab" && !event.shiftKey && !leaving && subject()) {
    event.preventDefault();
    if (isCurrent()) insert(Math.max(0, session.chosen));
    else insertAt = editor.selectionEnd;
  } else if (event.key === "ArrowDown" && atEnd && session.words.length) {
    event.preventDefault();
    choose(session.chosen + 1);
  } else if (event.key === "ArrowUp" && atEnd && session.chosen > 0) {
    event.preventDefault();
    choose(session.chosen - 1);
  } else if (event.key !== "Shift") leaving = false;
}

// The caret moved without a change: into a word, which is then explained, or to where something may be inserted.
function moved(event) {
  if (event.type === "keyup" && !/^(Arrow|Home|End|Page)/.test(event.key)) return;
  if (editor.selectionStart !== editor.selectionEnd || isCurrent()) return;
  if (event.type === "click" && tokenAt(event)) read(offsetOf(tokenAt(event)));
  else look();
}

function look() {
  const caret = editor.selectionEnd;
  if (caret < editor.value.trimEnd().length) read(Math.max(0, /\s/.test(editor.value[caret]) ? caret - 1 : caret));
  else type();
}

// The mirror: each token with its surprisal, then the ghost text.

function showSpans(found) {
  const text = editor.value;
  spans = text.startsWith(found.map((span) => span.text).join("")) ? found : []; // else a tokenizer that does not keep all text
  let same = 0; // leave what has not changed
  const made = mirror.children;
  while (same < spans.length && made[same]?.textContent === spans[same].text && made[same].bits === spans[same].bits) same += 1;
  while (mirror.childNodes.length > same) mirror.lastChild.remove();
  for (const span of spans.slice(same)) {
    const level = Math.min(8, Math.floor(span.bits / 2));
    const token = element("span", { className: level ? `s${level}` : "", textContent: span.text });
    token.bits = span.bits;
    mirror.append(token);
  }
  showGhost();
}

function showGhost() {
  if (editor.value.length > MOST_TYPED) return mirror.replaceChildren();
  const { place, written } = session;
  let length = 0;
  let known = 0; // tokens that are still in the text
  for (const token of mirror.children) {
    if (token.bits === undefined || !editor.value.startsWith(token.textContent, length)) break;
    token.classList.toggle("read", Boolean(written) && place.value === editor.value && length < place.end && length + token.textContent.trimEnd().length > place.start - 1);
    length += token.textContent.length;
    known += 1;
  }
  for (const node of [...mirror.childNodes].slice(known)) node.remove();
  mirror.append(editor.value.slice(length));
  const word = session.words[session.chosen]?.word ?? "";
  if (place && !written && editor.value && isCurrent() && place.caret === editor.value.length && word.startsWith(place.typed) && !DIRECTIONS.test(editor.value)) {
    mirror.append(isolated(word.slice(place.typed.length), "span", { className: "ghost" }));
  }
  mirror.append("\u200b");
  follow();
}

function follow() {
  mirror.scrollTop = editor.scrollTop;
}

function tokenAt(event) {
  return document.elementsFromPoint(event.clientX, event.clientY).find((found) => found.parentElement === mirror && found.bits !== undefined);
}

// Where a token begins in the text, past the space in front of it; a space alone belongs to what follows.
function offsetOf(token) {
  let offset = 0;
  for (const other of mirror.children) {
    if (other === token) break;
    offset += other.textContent.length;
  }
  return offset + token.textContent.length - token.textContent.trimStart().length;
}

function hover(event) {
  const bubble = byId("bubble");
  const token = tokenAt(event);
  bubble.hidden = !token;
  if (!token) return;
  bubble.replaceChildren(isolated(visible(token.textContent)), ` ${token.bits.toFixed(2)} bits, ${percent(2 ** -token.bits)}`);
  const box = editor.parentElement.getBoundingClientRect();
  bubble.style.left = `${Math.max(4, Math.min(event.clientX - box.left, box.width - bubble.offsetWidth - 4))}px`;
  const above = event.clientY - box.top - 44;
  bubble.style.top = `${above < 0 ? event.clientY - box.top + 22 : above}px`; // below the first line, so as not to cover it
}

function showStatus({ spans: found, bits }) {
  const tokens = found.reduce((sum, span) => sum + span.tokens, 0);
  byId("status").textContent = tokens ? `${bits.toFixed(1)} bits of surprise in ${plural(tokens, "token")}` : "";
}

// Texts to try, while there is none.

let example = 0;

function showExamples() {
  const examples = (subject()?.examples ?? []).filter((text) => text !== editor.value);
  byId("examples").hidden = !examples.length || !isUntouched();
  const shown = Array.from({ length: Math.min(3, examples.length) }, (_, place) => examples[(example + place) % examples.length]);
  byId("try").replaceChildren(
    ...shown.map((text) => {
      const button = isolated(text.trim() + " …", "button", { type: "button", className: "link" });
      button.addEventListener("click", () => {
        write(text);
        editor.focus();
      });
      return button;
    }),
  );
}

export const isUntouched = () => !editor.value || subject()?.examples.includes(editor.value);

function rotate() {
  if (!isUntouched() || byId("examples").contains(document.activeElement) || byId("examples").matches(":hover")) return;
  example += 1;
  showExamples();
}

export function write(text) {
  editor.value = text;
  editor.setSelectionRange(text.length, text.length);
  changed();
}

function changed() {
  insertAt = -1;
  byId("bubble").hidden = true;
  showExamples();
  emit("typed");
  type();
}

export function startEditor() {
  editor.addEventListener("input", changed);
  editor.addEventListener("keydown", pressed);
  editor.addEventListener("keyup", moved);
  editor.addEventListener("click", moved);
  editor.addEventListener("scroll", follow);
  editor.addEventListener("mousemove", hover);
  editor.addEventListener("mouseleave", () => (byId("bubble").hidden = true));
  on("models", showExamples);
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) setInterval(rotate, 5000);
}
