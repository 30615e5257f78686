// An explanation in words. Everything follows from the exact bits and the counts behind them; nothing here touches the page.
// A phrase is a list of strings and of {text, kin}: quoted text, and other words that a class stands for.

import { format, percent, visible } from "./dom.js";

const START = new Set(["prior", "normalizer"]);
const PLAIN = {
  "the word ends": "the word ends here",
  "letters typed": "the letters typed so far",
  "a word begins": "a new word begins",
  "other spellings": "other ways to spell it",
  "without the cache": "mixed with a model that ignores what you typed",
  "without the memory": "mixed with a model that ignores what you typed",
  network: "the trained network",
};
const SMALL = 0.05; // bits below which parts are summed
const LITTLE = 1; // bits below which no reason is worth a sentence
const MOST_ROWS = 7;

const written = (token) => (token === "<eod>" || token === "<pad>" ? "" : token);
const quoted = (text, kin = []) => ({ text, kin });
const times = (count) => (count === 1 ? "once" : count === 2 ? "twice" : `${format(count)} times`);
const ordinal = (number) => `${number}${["th", "st", "nd", "rd"][number] ?? "th"}`; // of the few places in reach

// What a part saw: "the number of"; a class is shown by the word that was typed, with others of the class.
function sight(counts) {
  const text = textOf(counts);
  const kin = counts.seen.flatMap((tokens) => (tokens.length > 1 ? [[...new Set(tokens.map(visible))].join("/")] : []));
  return text ? quoted(text, kin) : "the start of a line";
}

function textOf({ seen, partial }) {
  const text = seen.map((tokens) => written(tokens[0])).join("").trim();
  return partial ? `…${text.replace(/^\ufffd+/, "")}` : text; // the rest of a letter that was cut
}

// The rows of a word of several tokens: what a part saw of each token says little, so those that read on to the end of the word
// are shown with the counts of the whole word, and the others by their kind.
export function rowsOfWord({ word, rows, parts, said }) {
  if (parts.length === 1) return rows;
  return rows.map((row) => {
    const { counts } = row;
    if (row.name === "prior") return { ...row, counts: null };
    if (!counts?.seen.length || counts.here) return row;
    if (counts.gap) return { ...row, counts: null, title: ["words farther back"] };
    if (isOfClasses(counts)) return { ...row, counts: null, title: ["words like those before it"] };
    const last = parts.at(-1).rows.find(({ name }) => name === row.name)?.counts;
    if (said) return { ...row, target: word, counts: { ...counts, seen: [[said.context]], count: said.count, total: said.total, partial: false, shorter: null } };
    if (!last?.count || last.seen.length < parts.length) return { ...row, counts: null, title: ["the words before it"] };
    return { ...row, target: word, counts: { ...last, seen: last.seen.slice(0, 1 - parts.length) } };
  });
}

const isOfClasses = (counts) => textOf(counts) && counts.seen.some((tokens) => tokens.length > 1);

// The counts that speak for a word: a part that never saw it after all it matched falls back on less.
const telling = ({ counts, bits }) => (bits > 0 && counts?.shorter) || counts;

// "after the number of: pixels 4 of 183"
export function title(row, piece) {
  const { name, seen } = row;
  const counts = telling(row);
  const target = row.target ?? piece;
  if (row.title) return row.title;
  if (!counts) return [seen?.[0] === "<pad>" ? "where the text begins" : (PLAIN[name] ?? name)];
  const share = counts.total ? ` ${format(counts.count)} of ${format(counts.total)}` : "";
  if (counts.here && !counts.seen.length) return ["in what you typed: ", quoted(target), share];
  if (counts.here) return ["where you typed ", sight(counts), ...(share ? [": ", quoted(target), share] : ": nowhere else")];
  if (!counts.seen.length) return [quoted(target), share];
  if (counts.gap && !textOf(counts)) return [`${ordinal(counts.gap + 1)} in a line: `, quoted(target), share || " never seen"];
  const like = isOfClasses(counts) ? "words like " : "";
  const after = counts.gap ? `${counts.gap + 1} words after ` : "after ";
  return share ? [after, like, sight(counts), ": ", quoted(target), share] : [after, like, sight(counts), ": never seen"];
}

// The same as a reason: "the number of → pixels occurs 4 times in your text".
function reason(row, piece, owner) {
  const { target = piece } = row;
  const counts = telling(row);
  const often = times(counts.count);
  if (counts.here && !counts.seen.length) return ["you typed ", quoted(target), ` ${often} before`];
  if (counts.here) return ["you typed ", quoted(`${textOf(counts)} → ${target}`), ` ${often} before`];
  if (counts.gap && !textOf(counts)) return [quoted(target), ` is the ${ordinal(counts.gap + 1)} word of a line ${often} in ${owner}`];
  if (counts.gap) return [quoted(target), ` stands ${counts.gap + 1} words after `, sight(counts), ` ${often} in ${owner}`];
  if (isOfClasses(counts)) return [quoted(target), " follows words like ", sight(counts), ` ${often} in ${owner}`];
  if (!textOf(counts)) return ["a line begins with ", quoted(target), ` ${often} in ${owner}`];
  return [quoted(`${textOf(counts)} → ${target}`), ` occurs ${often} in ${owner}`];
}

// The reasons for a word that rest on counts, the largest first, those that read the same as one: {bits, phrase}.
export function reasons(explained, owner) {
  const [first, ...others] = explained.parts;
  const target = visible(first.token) + (others.length ? "…" : "");
  const found = new Map();
  for (const row of rowsOfWord(explained)) {
    const counts = telling(row);
    if (!counts?.count || START.has(row.name) || !(counts.seen.length || counts.here)) continue;
    if (!row.target && !first.token.trim()) continue; // about the space in front of a word that is spelled from pieces
    const phrase = reason(row, target, owner);
    const bits = row.bits + (found.get(plain(phrase))?.bits ?? 0);
    found.set(plain(phrase), { bits, phrase });
  }
  return [...found.values()].filter(({ bits }) => bits > SMALL).sort((a, b) => b.bits - a.bits);
}

// "pixels is 31% likely here, mostly because the number of → pixels occurs 4 times in your text".
export function sentence(explained, owner, isWritten) {
  const word = quoted(explained.word);
  const found = reasons(explained, owner);
  const bitsOf = (name) => explained.rows.find((row) => row.name === name)?.bits ?? 0;
  const strongest = Math.max(LITTLE, found[0]?.bits ?? 0);
  const all = found.reduce((sum, { bits }) => sum + bits, 0) + Math.max(0, bitsOf("network"));
  const likely = percent(explained.p);
  const surprise = explained.p < 0.01 && isWritten;
  const begin = surprise ? [word, ` is a surprise here (${likely}); its strongest reason: `] : [word, ` is ${likely} likely here, `];
  if (bitsOf("network") > Math.max(strongest, bitsOf("letters typed"))) return [...begin, surprise ? "" : "mostly because ", "the trained network expects it here."];
  if (bitsOf("letters typed") > strongest) return [...begin, "mostly because of the letters you typed."];
  if (!found.length || found[0].bits < LITTLE) {
    const prior = explained.parts.length === 1 && explained.rows.find((row) => row.name === "prior")?.counts;
    const often = !prior ? "it is spelled from pieces of words" : prior.count ? `it occurs ${times(prior.count)} in ${owner}` : `it never occurs in ${owner}`;
    return [word, ` is ${likely} likely here: ${often}, and little right before it suggests it.`];
  }
  const mostly = found[0].bits > all / 2 ? "mostly because " : "above all because ";
  return [...begin, surprise ? "" : mostly, ...found[0].phrase, "."];
}

export const plain = (phrase) => phrase.map((each) => (typeof each === "string" ? each : `“${each.text}”`)).join("");

// The rows of an explanation as they are shown: a starting point, the others by size, those that read the same as one, and the
// sum of the small ones.
export function ranked(rows, target) {
  const start = rows.filter((row) => START.has(row.name));
  const rest = merged(rows.filter((row) => !START.has(row.name)), target).sort((a, b) => Math.abs(b.bits) - Math.abs(a.bits));
  const large = rest.filter((row, place) => Math.abs(row.bits) >= SMALL && place < MOST_ROWS);
  const small = rest.slice(large.length);
  const made = [];
  if (start.length) made.push({ ...total(start), name: start.map((row) => row.name).join(" and "), title: ["starting point: ", ...beginning(start[0], target)] });
  made.push(...large);
  if (small.length) made.push({ ...total(small), name: small.map((row) => row.name).join(", "), title: [`${small.length} smaller ${small.length === 1 ? "reason" : "reasons"}`] });
  return made;
}

function merged(rows, target) {
  const groups = new Map();
  for (const row of rows) {
    const name = plain(title(row, target));
    groups.set(name, [...(groups.get(name) ?? []), row]);
  }
  return [...groups.values()].map((same) => (same.length === 1 ? same[0] : { ...same[0], ...total(same), counts: same[0].counts, seen: same[0].seen, weight: null, name: same.map((row) => row.name).join(" and ") }));
}

const beginning = ({ counts }, target) => (counts ? [quoted(target), ` is ${format(counts.count)} of ${format(counts.total)} tokens`] : ["how frequent its pieces are"]);

function total(rows) {
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  return { bits: sum(rows.map((row) => row.bits)), class_bits: sum(rows.map((row) => row.class_bits ?? 0)), counts: null, seen: [] };
}
