// Generated text, and the paper's model of the same text next to this one.

import { byId, complain, element, later, submitting } from "./dom.js";
import { refresh } from "./count.js";
import { MOST_TYPED, typedText } from "./editor.js";
import { ask, stop } from "./server.js";
import { accept, emit, on, session, subject } from "./session.js";
import { wordItem } from "./words.js";

const ABOUT_RIVAL = "The paper that saffu implements solves a network by formulas instead of training it. Typing is slower while it is fitted.";
const OUTPUTS = ["our-text", "their-text"];
let keystroke = 0;

function showRival() {
  const model = subject();
  if (!model) return;
  byId("rival-note").textContent = model.rival_note || (model.rival ? "" : ABOUT_RIVAL);
  byId("fit-rival").hidden = Boolean(model.rival) || model.rival_note.includes("being fitted") || !model.has_texts;
  byId("theirs").hidden = !model.rival && !model.has_texts;
  later("rival", 500, suggestRival);
}

function showShort(list, words) {
  const largest = words[0]?.p ?? 1;
  byId(list).replaceChildren(...words.slice(0, 5).map((each) => element("li", {}, element("div", { className: "take" }, ...wordItem(each, largest)))));
}

async function suggestRival() {
  if (session.written) return;
  const rival = subject()?.rival;
  const place = session.place;
  showShort("our-words", rival ? session.words : []);
  if (!rival || !place) return byId("their-words").replaceChildren();
  if (typedText().length > MOST_TYPED) return;
  keystroke += 1;
  const found = await ask("suggest", { model: rival, text: place.text, ending: place.ending, page: "rival", number: keystroke }, { replace: "suggest rival" });
  if (found && !found.outdated && session.place === place) showShort("their-words", found.words);
}

async function stream(id, output) {
  const text = typedText().replace(/[ \t]+$/, ""); // a space belongs to the next word
  const made = document.createTextNode("");
  byId(output).replaceChildren(element("span", { className: "prompt", textContent: text }), made);
  const settings = { temperature: Number(byId("temperature").value), top_p: Number(byId("top-p").value), seed: Number(byId("seed").value), max_tokens: 120 };
  const replace = `generate ${output}`;
  const response = await ask("generate", { model: id, text, ...settings }, { raw: true, replace });
  if (!response) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) made.data += part.value;
  } catch (error) {
    if (error.name !== "AbortError") complain("the generated text was cut off; try again");
  }
}

async function generate() {
  const button = byId("generate");
  if (button.textContent === "Stop") {
    for (const output of OUTPUTS) stop(`generate ${output}`);
    return;
  }
  button.textContent = "Stop";
  const rival = subject().rival;
  await Promise.all([stream(session.current, "our-text"), rival ? stream(rival, "their-text") : null]);
  button.textContent = "Generate";
}

export function showSettings() {
  for (const id of ["temperature", "top-p"]) byId(id).nextElementSibling.textContent = Number(byId(id).value).toFixed(2);
}

export function startCompare() {
  on("models", showRival);
  on("place", () => later("rival", 500, suggestRival));
  byId("fit-rival").addEventListener("click", async () => {
    const state = await ask("compare", { model: session.current });
    if (!state) return;
    accept(state);
    emit("models");
    later("refresh", 600, refresh);
  });
  submitting("sampling", generate);
  byId("sampling").addEventListener("input", showSettings);
}
