// The engine of a page without a server, outside a browser: node engine.mjs FOLDER < REQUESTS. Prints the answers as JSON.

import fs from "node:fs";

const [, , folder] = process.argv;
const { requests, texts, merges } = JSON.parse(fs.readFileSync(0, "utf8"));
const answers = [];
globalThis.onmessage = null;
globalThis.fetch = async (name) => {
  const { buffer, byteOffset, byteLength } = fs.readFileSync(`${folder}/${name}`);
  return { ok: true, arrayBuffer: async () => buffer.slice(byteOffset, byteOffset + byteLength) };
};
fs.writeFileSync(`${folder}/package.json`, '{"type": "module"}');
await import(`${folder}/engine.js`);
const { Tokenizer } = await import(`${folder}/tokenizer.js`);
const { sha256 } = await import(`${folder}/sha256.js`);

for (const [id, [name, body]] of requests.entries()) {
  answers.push(
    await new Promise((resolve) => {
      globalThis.postMessage = resolve;
      globalThis.onmessage({ data: { id, name, body } });
    }),
  );
}
const tokenizer = new Tokenizer(merges);
const ids = texts.map((text) => tokenizer.encodePrompt(text));
const hashes = texts.map((text) => sha256([new TextEncoder().encode(text)]));
fs.writeFileSync(1, JSON.stringify({ answers, ids, hashes }));
