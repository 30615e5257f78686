// The suggestions for the place of the caret: take one, or ask why.

import { byId, element, isolated, later, percent, speak } from "./dom.js";
import { choose, insert } from "./editor.js";
import { on, session } from "./session.js";

export function wordItem({ word, p }, largest) {
  const share = element("span", { className: "share", ariaHidden: "true" });
  share.style.width = `${(100 * p) / largest}%`;
  return [share, isolated(word, "span", { className: "word" }), element("span", { className: "p", textContent: percent(p) })];
}

function showWords() {
  const { words, written, place } = session;
  const title = written ? ["Instead of “", isolated(written.word), "”"] : place.typed ? ["Words that begin with “", isolated(place.typed), "”"] : ["Next word"];
  byId("words-title").replaceChildren(...title);
  byId("words-title").classList.toggle("usual", !written && !place.typed);
  const largest = words[0]?.p ?? 1;
  byId("words").replaceChildren(
    ...words.map((each, chosen) => {
      const take = element("button", { type: "button", className: "take", title: written ? "Write this word instead" : "Insert this word" }, ...wordItem(each, largest));
      take.addEventListener("click", () => insert(chosen));
      const why = element("button", { type: "button", className: "ask", textContent: "?", ariaLabel: `Why ${each.word}?`, title: "Why this word?" });
      why.addEventListener("click", () => choose(chosen));
      return element("li", {}, take, why);
    }),
  );
  if (!words.length) byId("words").append(element("li", { className: "none", textContent: "No word of this text begins like that." }));
  markChosen();
  if (!written) later("speak", 600, () => speak(words.length ? `${words.length} suggestions, first: ${words[0].word}, ${percent(words[0].p)}` : "no suggestions"));
}

function markChosen() {
  [...byId("words").querySelectorAll("li:not(.none)")].forEach((item, place) => {
    item.classList.toggle("chosen", place === session.chosen);
    item.lastChild.ariaPressed = String(place === session.chosen);
  });
}

export function startWords() {
  on("place", showWords);
  on("word", markChosen);
}
