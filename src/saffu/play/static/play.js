// The page of `saffu play`. Text from outside enters the page as text nodes only; every request goes to this server.

const byId = (id) => document.getElementById(id);
const page = Math.random().toString(36).slice(2);
const number = new Intl.NumberFormat("en");

let models = [];
let current = ""; // id of the model in use
let job = null;
let formWanted = false; // whether to show the form for another text
let keystroke = 0; // numbers requests, so that the server drops those that are out of date
let words = []; // suggestions shown: {word, p}
let chosen = 0; // which of them is explained
let wanted = ""; // a word to choose once it is suggested
let explained = null; // the server's explanation of the chosen word
let previous = null; // what was explained before the last change
let piece = -1; // which token of the word is explained; −1 for all of them
let allParts = false;
const pending = new Map(); // open requests by name; a newer one replaces them

const FAILED = "saffu play failed unexpectedly; the terminal shows why";
const SMALL = 0.05; // bits below which parts of an explanation are folded
const MOST_IN_ADDRESS = 2000; // characters of text
const MOST_TYPED = 10_000; // characters, as in server.py
const LARGEST_TEXT = 20_000_000; // bytes, as in guard.py

// Asking the server.

async function ask(name, body, { replace = name, method = "POST", raw = false } = {}) {
  pending.get(replace)?.abort();
  const control = new AbortController();
  pending.set(replace, control);
  try {
    const options = { method, signal: control.signal };
    if (body !== undefined) {
      const plain = typeof body === "string" || body instanceof Blob;
      options.headers = { "Content-Type": plain ? "text/plain; charset=utf-8" : "application/json" };
      options.body = plain ? body : JSON.stringify(body);
    }
    const response = await fetch(`api/${name}`, options);
    if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error ?? FAILED);
    return raw ? response : await response.json();
  } catch (error) {
    if (error.name === "AbortError") return null;
    complain(error instanceof TypeError ? "saffu play has stopped; start it again in the terminal" : error.message);
    return null;
  } finally {
    if (pending.get(replace) === control && !raw) pending.delete(replace);
  }
}

function complain(message) {
  byId("error").textContent = message;
  byId("error").hidden = !message;
}

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

const subject = () => models.find((model) => model.id === current);
const percent = (p) => (p >= 0.0995 ? `${(100 * p).toFixed(0)}%` : p >= 0.001 ? `${(100 * p).toFixed(1)}%` : "<0.1%");
const signed = (bits) => `${bits < 0 ? "−" : "+"}${Math.abs(bits).toFixed(2)}`;
const visible = (token) => ({ "<eod>": "⏎", "<pad>": "∅" })[token] ?? (token.trim() || "␣");

// Counting.

function countText(body, query, name) {
  complain("");
  if (new Blob([body]).size > LARGEST_TEXT) {
    complain("this text is larger than 20 MB, the limit of this page; use saffu train instead");
    return;
  }
  const split = byId("split").value;
  ask(`count?${new URLSearchParams({ split, name, ...query })}`, body).then((started) => {
    if (!started) return;
    job = started;
    formWanted = false;
    showCount();
    later("refresh", 100, refresh);
  });
}

function readFile(file) {
  if (file) countText(file, {}, file.name);
}

async function refresh() {
  const state = await ask("state", undefined, { method: "GET" });
  if (!state) return;
  const finished = job && !job.subject && state.job?.subject;
  if (state.job?.error && job && !job.error) {
    complain(state.job.error);
    byId("source").focus();
  }
  ({ models, job } = state);
  if (finished || !subject()) current = models.at(-1)?.id ?? "";
  showModels();
  showCount();
  if (finished) {
    byId("facts-title").focus({ preventScroll: true });
    document.title = `${subject().name} – saffu play`;
  }
  if (subject() && (finished || !words.length)) type();
  const waiting = subject()?.changes.some((change) => change.equal === null && !change.failed);
  const fitting = models.some((model) => !model.rival && model.rival_note.includes("being fitted"));
  if (job && !job.subject && !job.error) setTimeout(refresh, 250);
  else if (waiting || fitting) setTimeout(refresh, 600);
}

function showModels() {
  const choice = byId("model");
  choice.replaceChildren(...models.map(({ id, name }) => element("option", { value: id, textContent: name, selected: id === current })));
  choice.parentElement.hidden = models.length < 2;
  byId("with-model").hidden = !subject();
  if (subject()) {
    showChanges();
    showRival();
  }
}

function showCount() {
  const counting = job && !job.subject && !job.error;
  const model = subject();
  byId("progress").hidden = !counting;
  byId("facts").hidden = counting || !model || formWanted;
  byId("count-form").hidden = counting || (model && !formWanted);
  if (counting) {
    byId("progress-title").textContent = `Counting ${job.name}… ${job.seconds.toFixed(0)} s`;
    byId("done").max = job.stages.length;
    byId("done").value = job.stage + 0.5;
    const list = byId("stages");
    while (list.children.length < job.stages.length) list.append(element("li"));
    job.stages.forEach((stage, place) => {
      const item = list.children[place];
      item.textContent = stage;
      item.className = place < job.stage ? "done" : place === job.stage ? "now" : "";
    });
  }
  if (model) showFacts(model);
}

function showFacts(model) {
  byId("facts-title").textContent = model.has_texts ? model.name[0].toUpperCase() + model.name.slice(1) : model.name;
  const { scores } = model;
  const facts = [["tokens", number.format(model.tokens)], ["documents", number.format(model.documents)], ["vocabulary", number.format(model.vocabulary)]];
  if (scores.seconds) facts.push(["seconds to count", scores.seconds.toFixed(1)]);
  byId("numbers").replaceChildren(
    ...facts.map(([name, value]) => element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value }))),
  );
  const rows = [["this model", scores.calibrated], ["Kneser–Ney 5-gram", scores.kneser_ney], ["the paper’s solution", scores.paper]];
  const shown = rows.filter(([, bits]) => bits);
  const most = Math.max(...shown.map(([, bits]) => bits));
  const least = Math.min(...shown.map(([, bits]) => bits));
  const cells = shown.flatMap(([name, bits]) => {
    const fill = element("div", { className: bits === least ? "fill best" : "fill" });
    fill.style.width = `${(100 * bits) / most}%`;
    return [
      element("span", { textContent: name }),
      element("div", { className: "track" }, fill),
      element("span", { className: "value", textContent: bits.toFixed(3) }),
    ];
  });
  let note = "";
  if (shown.length) note = `bits per byte on ${number.format(scores.held_out)} held-out documents (lower is better); they were counted afterward`;
  else if (scores.seconds) note = "With ten documents or more, some would be held out to score the model.";
  byId("scores").replaceChildren(...cells, element("span", { className: "note", textContent: note }));
}

// Typing.

async function type() {
  const editor = byId("editor");
  const text = editor.value;
  const began = performance.now();
  if (text.length > MOST_TYPED) {
    complain(`this text has ${number.format(text.length)} characters, but the page accepts at most ${number.format(MOST_TYPED)}; shorten it`);
    showSpans([], "");
    return;
  }
  keystroke += 1;
  remember();
  const found = await ask("suggest", { model: current, text, page, number: keystroke });
  if (!found || found.outdated || editor.value !== text) return;
  byId("latency").textContent = `${Math.round(performance.now() - began)} ms`;
  complain("");
  words = found.words;
  chosen = Math.max(0, words.findIndex(({ word }) => word === wanted));
  wanted = "";
  piece = -1;
  showSpans(found.spans, text);
  const tokens = found.spans.reduce((sum, span) => sum + span.tokens, 0);
  byId("status").textContent = tokens
    ? `${found.bits.toFixed(1)} bits in ${number.format(tokens)} ${tokens === 1 ? "token" : "tokens"}, ${(found.bits / tokens).toFixed(1)} each`
    : "The more surprising a token, the stronger its color.";
  byId("words-title").textContent = found.typed ? `Words that begin with “${found.typed}”` : "Next word";
  showWords();
  later("explain", 120, explain);
  later("speak", 600, () => {
    byId("spoken").textContent = words.length ? `${words.length} suggestions, first: ${words[0].word}, ${percent(words[0].p)}` : "no suggestions";
  });
  later("rival", 500, suggestRival);
}

const timers = new Map();
function later(name, milliseconds, work) {
  clearTimeout(timers.get(name));
  timers.set(name, setTimeout(work, milliseconds));
}

function showSpans(spans, text) {
  const mirror = byId("mirror");
  const whole = spans.map((span) => span.text).join("");
  if (!text.startsWith(whole)) spans = []; // a tokenizer that does not keep all text
  let same = 0; // leave what has not changed
  while (same < spans.length && mirror.children[same]?.textContent === spans[same].text && mirror.children[same].bits === spans[same].bits) same += 1;
  while (mirror.childNodes.length > same) mirror.lastChild.remove();
  for (const span of spans.slice(same)) {
    const level = Math.min(8, Math.floor(span.bits / 2));
    const made = element("span", { className: level ? `s${level}` : "", textContent: span.text });
    made.bits = span.bits;
    mirror.append(made);
  }
  mirror.append(text.slice(spans.length ? whole.length : 0) + "\u200b");
  followEditor();
}

function followEditor() {
  byId("mirror").scrollTop = byId("editor").scrollTop;
}

function hover(event) {
  const bubble = byId("bubble");
  const span = document.elementsFromPoint(event.clientX, event.clientY).find((found) => found.parentElement?.id === "mirror");
  bubble.hidden = !span;
  if (!span) return;
  bubble.textContent = `${visible(span.textContent)} ${span.bits.toFixed(2)} bits, ${percent(2 ** -span.bits)}`;
  const box = byId("editor").parentElement.getBoundingClientRect();
  bubble.style.left = `${Math.max(4, Math.min(event.clientX - box.left, box.width - bubble.offsetWidth - 4))}px`;
  bubble.style.top = `${Math.max(2, event.clientY - box.top - 34)}px`;
}

function wordItem({ word, p }, largest) {
  const share = element("span", { className: "share", ariaHidden: "true" });
  share.style.width = `${(100 * p) / largest}%`;
  return [share, element("span", { className: "word", dir: "auto", textContent: word }), element("span", { className: "p", textContent: percent(p) })];
}

function showWords() {
  const largest = words[0]?.p ?? 1;
  byId("words").replaceChildren(
    ...words.map((each, place) => {
      const take = element("button", { type: "button", className: "take", title: "Insert this word" }, ...wordItem(each, largest));
      take.addEventListener("click", () => takeWord(place));
      const why = element("button", { type: "button", className: "ask", textContent: "why?", ariaLabel: `Why ${each.word}?` });
      why.addEventListener("click", () => choose(place));
      return element("li", {}, take, why);
    }),
  );
  markChosen();
}

function markChosen() {
  [...byId("words").children].forEach((item, place) => {
    item.classList.toggle("chosen", place === chosen);
    item.lastChild.ariaPressed = String(place === chosen);
  });
}

function choose(place) {
  chosen = Math.max(0, Math.min(words.length - 1, place));
  piece = -1;
  markChosen();
  remember();
  byId("spoken").textContent = words[chosen] ? `${words[chosen].word}, ${percent(words[chosen].p)}` : "";
  explain();
}

function takeWord(place) {
  const editor = byId("editor");
  if (!words[place]) return;
  const unfinished = editor.value.match(/[^ \t\n\r\v\f]*$/)[0];
  editor.value = editor.value.slice(0, editor.value.length - unfinished.length) + words[place].word + " ";
  editor.focus();
  editor.scrollTop = editor.scrollHeight;
  type();
}

let leaving = false; // whether Escape was pressed: then Tab leaves the editor

function pressed(event) {
  const editor = byId("editor");
  const atEnd = editor.selectionStart === editor.value.length;
  if (event.key === "Escape") leaving = true;
  else if (event.key === "Tab" && !event.shiftKey && !leaving && words.length) {
    event.preventDefault();
    takeWord(chosen);
  } else if (event.key === "ArrowDown" && atEnd && words.length) {
    event.preventDefault();
    choose(chosen + 1);
  } else if (event.key === "ArrowUp" && atEnd && chosen > 0) {
    event.preventDefault();
    choose(chosen - 1);
  } else if (event.key !== "Shift") leaving = false;
}

// Why.

async function explain() {
  const text = byId("editor").value;
  if (text.length > MOST_TYPED) return;
  const word = words[chosen]?.word;
  byId("snapshot").disabled = !word;
  if (!word) {
    explained = null;
    showWhy();
    byId("documents").replaceChildren();
    return;
  }
  const asked = { model: current, text, word };
  const [why, documents] = await Promise.all([ask("why", asked), ask("documents", asked)]);
  if (why) {
    explained = why;
    showWhy();
  }
  if (documents) showDocuments(documents, word);
}

function showWhy() {
  byId("why-title").textContent = explained ? `Why “${explained.word}”?` : "Why?";
  byId("why-legend").hidden = !explained;
  const sum = byId("why-sum");
  const pieces = byId("pieces");
  if (!explained) {
    sum.textContent = "Start typing, and every suggestion is explained here.";
    pieces.replaceChildren();
    showBars([], 0);
    return;
  }
  const parts = explained.parts;
  const part = parts[piece];
  const bits = part ? part.bits : explained.bits;
  const p = element("b", { textContent: percent(2 ** bits) });
  const members = (part ?? (parts.length === 1 ? parts[0] : null))?.class.map(visible);
  const power = element("sup", { textContent: signed(bits) });
  const kin = members?.length ? ` Its class: ${[...new Set(members)].join(", ")}, …` : "";
  const changed = previous?.word === explained.word && previous.text === byId("editor").value && previous.bits !== explained.bits;
  const was = changed && !part ? ` It was ${percent(previous.p)} before the last change.` : "";
  sum.replaceChildren(p, " = 2", power, ". The exponent is the sum of what each part adds, in bits.", was, kin);
  if (parts.length > 1) {
    const names = ["whole word", ...parts.map(({ token }) => visible(token))];
    pieces.replaceChildren(
      ...names.map((name, place) => {
        const button = element("button", { type: "button", textContent: name, ariaPressed: String(place - 1 === piece), dir: "auto" });
        button.addEventListener("click", () => {
          piece = place - 1;
          showWhy();
          byId("pieces").children[place].focus();
        });
        return button;
      }),
    );
  } else pieces.replaceChildren();
  showBars(part ? part.rows : explained.rows, bits, visible(part ? part.token : parts[0].token));
}

const bars = new Map(); // rows of the table by name, kept so that bars move

function showBars(rows, total, target) {
  const small = rows.filter((row) => Math.abs(row.bits) < SMALL);
  const shown = allParts ? rows : rows.filter((row) => !small.includes(row));
  if (!allParts && small.length) {
    const sum = small.reduce((bits, row) => bits + row.bits, 0);
    shown.push({ name: `${small.length} smaller ${small.length === 1 ? "part" : "parts"}`, bits: sum, class_bits: null, counts: null });
  }
  const button = byId("all-parts");
  button.hidden = !small.length;
  button.textContent = allParts ? "Hide small parts" : "Show all parts";
  button.ariaExpanded = String(allParts);
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
    if (!bars.has(row.name)) bars.set(row.name, barRow(row.name));
    const made = bars.get(row.name);
    if (body.children[place] !== made) body.insertBefore(made, body.children[place] ?? null);
    drawBar(made, levels[place], at);
    made.querySelector(".bits").textContent = signed(row.bits);
    made.querySelector(".evidence").replaceChildren(...evidence(row, target));
  });
  const foot = byId("bars").tFoot;
  if (!rows.length) foot.replaceChildren();
  else {
    if (!foot.firstChild) foot.append(barRow("log₂ p"));
    drawBar(foot.firstChild, [0, total], at);
    foot.querySelector(".bits").textContent = signed(total);
  }
}

function barRow(name) {
  const track = element("div", { className: "track", ariaHidden: "true" });
  track.append(element("span", { className: "zero" }), element("span", { className: "part class" }), element("span", { className: "part" }));
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, element("span", { textContent: name }), element("span", { className: "evidence" })),
    element("td", {}, track),
    element("td", { className: "bits" }),
  );
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

// "the → dog 14 of 210": what a part saw, and how often the token followed. A class is shown by one of its words.
function evidence({ name, seen, counts }, target) {
  if (!counts) return seen?.[0] === "<pad>" ? ["before the text begins"] : [];
  if (!counts.total) return counts.here ? [] : ["not seen before"];
  const left = element("bdi");
  for (const tokens of counts.seen) {
    const [first] = tokens.map(visible);
    const kin = [...new Set(tokens.map(visible))].join(", ");
    left.append(tokens.length > 1 ? element("span", { className: "kin", title: `${kin}, …`, textContent: first }) : first, " ");
  }
  if (/^slot ([2-9]|1\d)$/.test(name)) left.append("… ");
  left.append(counts.seen.length ? `→ ${target} ` : `${target} `);
  return [left, element("b", { textContent: `${number.format(counts.count)} of ${number.format(counts.total)}` }), counts.here ? " so far" : ""];
}

async function saveSnapshot() {
  const word = explained?.word;
  if (!word) return;
  const response = await ask("snapshot", { model: current, text: byId("editor").value, word }, { raw: true });
  if (!response) return;
  download(await response.blob(), `why-${word.replace(/[^\p{L}\p{N}-]+/gu, "") || "word"}.html`);
}

function download(blob, name) {
  const url = URL.createObjectURL(blob);
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// Forgetting and learning.

function showDocuments({ documents, holding }, word) {
  const model = subject();
  byId("documents-title").textContent = model.has_texts ? `Documents that say “${word}” here` : "Forget a document";
  byId("forget-form").hidden = model.has_texts;
  byId("drop-label").hidden = !model.has_network;
  const items = documents.map((found) => {
    const forget = element("button", { type: "button", textContent: "Forget" });
    forget.ariaLabel = `Forget the document: ${(found.before + found.context + found.word + found.after).slice(0, 80)}`;
    forget.addEventListener("click", () => change("forget", { document: found.number }));
    const text = element(
      "p",
      { dir: "auto" },
      found.before,
      element("mark", { textContent: found.context }),
      element("mark", { className: "word", textContent: found.word }),
      found.after,
    );
    return element("li", {}, text, forget);
  });
  if (model.has_texts && !items.length) items.push(element("li", { className: "empty", textContent: `No document contains “${word}”.` }));
  if (holding > documents.length) {
    items.push(element("li", { className: "more", textContent: `${number.format(holding)} documents contain this word; those that match your text best come first.` }));
  }
  byId("documents").replaceChildren(...items);
}

async function change(name, body) {
  complain("");
  const last = explained && { ...explained, text: byId("editor").value };
  const state = await ask(name, { model: current, ...body }, { replace: "change" });
  if (!state) return false;
  previous = last;
  ({ models, job } = state);
  wanted = words[chosen]?.word ?? "";
  showModels();
  showCount();
  type();
  later("refresh", 150, refresh);
  return true;
}

function showChanges() {
  const model = subject();
  byId("undo").disabled = !model.can_undo;
  byId("changes-title").hidden = !model.changes.length;
  const items = model.changes.map((made) => {
    const verb = made.kind === "forget" ? "Forgot" : "Learned";
    let other = "counted again";
    let verdict = "Undoing the change restores the previous model, bit for bit.";
    if (model.has_texts) {
      other = made.kind === "forget" ? "never saw it" : "counted at once";
      verdict = `Equal, bit for bit, to a model that counts the ${number.format(made.recounted ?? 0)} documents from scratch.`;
    }
    const unequal = "Different: this is a bug; please report it.";
    const state = made.failed ? "failed" : made.equal === null ? "open" : made.equal ? "equal" : "different";
    const says = { failed: made.failed, open: "Verifying the change…", equal: verdict, different: unequal }[state];
    const rows = [["before", made.before], ["after", made.after]];
    if (made.check) rows.push([other, made.check]);
    return element(
      "li",
      { className: state },
      element("p", { className: "what", dir: "auto" }, `${verb} “`, element("bdi", { textContent: made.document }), "”"),
      element("dl", {}, ...rows.flatMap(([term, print]) => [element("dt", { textContent: term }), element("dd", { textContent: print.slice(0, 24), title: print })])),
      element("p", { className: "verdict", textContent: says }),
    );
  });
  const list = byId("changes");
  const text = JSON.stringify(model.changes);
  if (list.shown !== text) list.replaceChildren(...items.reverse());
  list.shown = text;
}

// Comparing.

function showRival() {
  const { rival, rival_note } = subject();
  byId("rival-note").textContent = rival_note;
  byId("rival-note").hidden = !rival_note;
  if (rival && !byId("their-words").children.length) later("rival", 0, suggestRival);
}

function showShort(list, found) {
  const largest = found[0]?.p ?? 1;
  byId(list).replaceChildren(
    ...found.slice(0, 5).map((each) => element("li", {}, element("div", { className: "take" }, ...wordItem(each, largest)))),
  );
}

async function suggestRival() {
  showShort("our-words", words);
  const rival = subject()?.rival;
  if (!rival) return byId("their-words").replaceChildren();
  const text = byId("editor").value;
  if (text.length > MOST_TYPED) return;
  const found = await ask("suggest", { model: rival, text, page, number: keystroke }, { replace: "suggest rival" });
  if (found && !found.outdated && byId("editor").value === text) showShort("their-words", found.words);
}

async function stream(id, output) {
  const text = byId("editor").value.replace(/[ \t]+$/, ""); // a space belongs to the next word
  const prompt = element("span", { className: "prompt", textContent: text });
  const made = document.createTextNode("");
  byId(output).replaceChildren(prompt, made);
  const settings = { temperature: Number(byId("temperature").value), top_p: Number(byId("top-p").value), seed: Number(byId("seed").value), max_tokens: 120 };
  const replace = `generate ${output}`;
  const response = await ask("generate", { model: id, text, ...settings }, { raw: true, replace });
  if (!response) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) made.data += part.value;
  } catch (error) {
    if (error.name !== "AbortError") complain("the generated text was cut off; try again");
  } finally {
    pending.delete(replace);
  }
}

async function generate() {
  remember();
  const button = byId("generate");
  if (button.textContent === "Stop") {
    for (const output of ["our-text", "their-text"]) pending.get(`generate ${output}`)?.abort();
    return;
  }
  button.textContent = "Stop";
  const rival = subject().rival;
  await Promise.all([stream(current, "our-text"), rival ? stream(rival, "their-text") : null]);
  button.textContent = "Generate";
}

function showSettings() {
  for (const id of ["temperature", "top-p"]) byId(id).nextElementSibling.textContent = Number(byId(id).value).toFixed(2);
}

// The state in the address.

function remember() {
  later("address", 200, () => {
    const state = new URLSearchParams();
    state.set("text", byId("editor").value.slice(-MOST_IN_ADDRESS));
    if (words[chosen]) state.set("word", words[chosen].word);
    for (const id of ["temperature", "top-p", "seed"]) state.set(id, byId(id).value);
    history.replaceState(null, "", `#${state}`);
  });
}

function recall() {
  const state = new URLSearchParams(location.hash.slice(1));
  byId("editor").value = state.get("text") ?? "";
  wanted = state.get("word") ?? "";
  for (const id of ["temperature", "top-p", "seed"]) if (state.has(id)) byId(id).value = state.get(id);
  showSettings();
}

// Events.

function submitting(id, work) {
  byId(id).addEventListener("submit", (event) => {
    event.preventDefault();
    work();
  });
}

byId("count-text").addEventListener("click", () => countText(byId("source").value, {}, "your text"));
byId("count-demo").addEventListener("click", () => countText("", { demo: "1" }, ""));
byId("file").addEventListener("change", (event) => readFile(event.target.files[0]));
byId("again").addEventListener("click", () => {
  formWanted = true;
  showCount();
  byId("source").focus();
});
const drop = byId("count");
document.addEventListener("dragover", (event) => event.preventDefault());
drop.addEventListener("dragover", () => drop.classList.add("dropping"));
drop.addEventListener("dragleave", () => drop.classList.remove("dropping"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("dropping");
  readFile(event.dataTransfer.files[0]);
});
byId("model").addEventListener("change", (event) => {
  current = event.target.value;
  byId("their-words").replaceChildren();
  showModels();
  showCount();
  type();
});
byId("editor").addEventListener("input", type);
byId("editor").addEventListener("keydown", pressed);
byId("editor").addEventListener("scroll", followEditor);
byId("editor").addEventListener("mousemove", hover);
byId("editor").addEventListener("mouseleave", () => (byId("bubble").hidden = true));
byId("all-parts").addEventListener("click", () => {
  allParts = !allParts;
  showWhy();
});
byId("snapshot").addEventListener("click", saveSnapshot);
byId("undo").addEventListener("click", () => change("undo", {}));
submitting("learn-form", async () => (await change("learn", { text: byId("learn-text").value })) && (byId("learn-text").value = ""));
submitting("forget-form", async () => {
  const body = { text: byId("forget-text").value, drop_network: byId("drop-network").checked };
  if (await change("forget", body)) byId("forget-text").value = "";
});
submitting("save", async () => {
  const saved = await ask("save", { model: current, name: byId("save-name").value });
  if (saved) byId("save").lastElementChild.textContent = `Saved as ${saved.saved}`;
  later("saved", 4000, () => (byId("save").lastElementChild.textContent = "Save model"));
});
submitting("sampling", generate);
byId("sampling").addEventListener("input", () => {
  showSettings();
  remember();
});
addEventListener("hashchange", () => {
  recall();
  if (subject()) type();
});

recall();
refresh();
