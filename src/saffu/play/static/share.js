// Something to share: a card as a picture, and a snapshot as a page with a name and a link.

import { card, pngFile, svgFile } from "./card.js";
import { byId, complain, download, isolated, later, submitting } from "./dom.js";
import { plain, sentence } from "./reasons.js";
import { ask } from "./server.js";
import { session, subject } from "./session.js";
import { snapshot } from "./snapshot.js";

let shared = null; // what the dialog shows: {explained, before, picture}

const OWNER = "the text"; // not "your text": whoever sees it did not write it

// What stands before the word that is explained.
function textBefore() {
  const { text, typed, ending } = session.place;
  return text.slice(0, text.length - (ending ? ending.length : typed.length));
}

function open() {
  const { explained } = session;
  const before = textBefore();
  shared = { explained, before, picture: card(explained, before.trim(), OWNER) };
  byId("share-title").replaceChildren("Share “", isolated(explained.word), "”");
  byId("card").replaceChildren(shared.picture);
  byId("snapshot-name").value = fileName();
  byId("snapshot-link").hidden = true;
  byId("share").showModal();
}

const slug = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "");
const fileName = () => slug(`why ${shared.before.split(/\s+/).slice(-4).join(" ")} ${shared.explained.word}`).slice(0, 60) || "why";
const name = () => byId("snapshot-name").value.trim() || fileName();
const page = () => snapshot(name(), subject().name, shared.before, shared.explained, OWNER);

function said(id, words) {
  const button = byId(id);
  const before = button.dataset.says ?? button.textContent;
  button.dataset.says = before;
  button.textContent = words;
  later(id, 2500, () => (button.textContent = before));
}

async function copy(id, text) {
  try {
    await navigator.clipboard.writeText(text);
    said(id, "Copied");
  } catch {
    said(id, "Cannot copy here");
  }
}

async function link() {
  const made = await ask("snapshot", { name: name(), page: page() });
  if (!made) return byId("share").close();
  const address = new URL(made.path, location.origin).href;
  byId("snapshot-address").href = address;
  byId("snapshot-address").textContent = address;
  byId("snapshot-frame").value = `<iframe src="${address}" title="${name()}" width="100%" height="520" style="border: 0"></iframe>`;
  byId("snapshot-link").hidden = false;
}

export function startShare() {
  byId("share-open").addEventListener("click", open);
  byId("share-close").addEventListener("click", () => byId("share").close());
  byId("card-png").addEventListener("click", async () => {
    const file = await pngFile(shared.picture);
    if (file) download(file, `${name()}.png`);
    else complain("this browser cannot make the picture; save it as SVG");
  });
  byId("card-svg").addEventListener("click", () => download(svgFile(shared.picture), `${name()}.svg`));
  byId("card-text").addEventListener("click", () => copy("card-text", `${shared.before}${plain(sentence(shared.explained, OWNER, shared.explained.isWritten))}`));
  byId("snapshot-make-link").addEventListener("click", link);
  submitting("snapshot", () => download(new Blob([page()], { type: "text/html" }), `${name()}.html`));
}
