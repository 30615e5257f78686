// The page of `saffu play`: starts its panels, and keeps its state in the address. Every request goes to this server.

import { startCompare, showSettings } from "./compare.js";
import { refresh, startCount } from "./count.js";
import { byId, later } from "./dom.js";
import { startEditor, type, typedText } from "./editor.js";
import { startForget } from "./forget.js";
import { chosenWord, on, session, subject } from "./session.js";
import { startShare } from "./share.js";
import { startTrain } from "./train.js";
import { startWhy } from "./why.js";
import { startWords } from "./words.js";

const MOST_IN_ADDRESS = 2000; // characters of text
const SETTINGS = ["temperature", "top-p", "seed"];

function remember() {
  later("address", 200, () => {
    const state = new URLSearchParams();
    state.set("text", typedText().slice(-MOST_IN_ADDRESS));
    if (session.chosen >= 0 && chosenWord()) state.set("word", chosenWord());
    for (const id of SETTINGS) state.set(id, byId(id).value);
    history.replaceState(null, "", `#${state}`);
  });
}

function recall() {
  const state = new URLSearchParams(location.hash.slice(1));
  const text = state.get("text") ?? "";
  byId("editor").value = text;
  byId("editor").setSelectionRange(text.length, text.length);
  session.wanted = state.get("word") ?? "";
  for (const id of SETTINGS) if (state.has(id)) byId(id).value = state.get(id);
  showSettings();
}

byId("not-started").remove();
startCount();
startEditor();
startWords();
startWhy();
startForget();
startTrain();
startCompare();
startShare();
for (const name of ["place", "word"]) on(name, remember);
byId("sampling").addEventListener("input", remember);
addEventListener("hashchange", () => {
  recall();
  if (subject()) type();
});

recall();
refresh();
