"""saffu in one minute. Run it: python docs/tutorial.py (it writes only into a temporary folder)

Every step shows the Python call, with the equivalent command next to it.
"""

# %% Text: any iterable of strings, one per document. Here, a part of the English text that ships with Python.
import itertools
import json
import tempfile
from pathlib import Path

import saffu
from saffu.text.default_corpus import default_corpus
from saffu.tools.minimal_pairs import evaluate_pairs

paragraphs = list(itertools.islice(default_corpus(), 800))
train = [text for number, text in enumerate(paragraphs) if number % 20]
held_out = paragraphs[::20]
print(f"{len(train)} documents to count, {len(held_out)} held out; the first begins: {train[0][:60]!r}\n")

# %% Count.                                                    saffu train books/ --out model
lm = saffu.SaffuLM().fit(train, dev=held_out)
print(lm)
print(f"fitted in {lm.log_[0]['seconds']:.1f} s\n")

# %% How good is it? Compare it with n-grams of the same text. saffu eval model held-out.txt
score = lm.score(held_out)
print(f"{'this model':<10}  perplexity {score.perplexity:7.1f}   bits per byte {score.bits_per_byte:.3f}")
for name, baseline in lm.reference_scores(held_out).items():
    print(f"{name:<10}  perplexity {baseline.perplexity:7.1f}   bits per byte {baseline.bits_per_byte:.3f}")

# %% Generate text.                                            saffu generate model "The function" --top-p 0.9 --seed 1
print("\nThe function" + lm.generate("The function", seed=1, top_p=0.9, max_tokens=40) + "\n")

# %% The recency cache: words that occurred earlier in a document are expected to recur.
line = "A parser reads the text of the parser."
once, twice = lm.score([line]), lm.score([f"{line}\n{line}"])
print(f"a line alone {once.nll:.1f} nats, after itself {twice.nll - once.nll:.1f}\n")

# %% How surprising is each word?                              echo "…" | saffu score model --words
for word in lm.surprisals("This is equivalent to a class."):
    print(f"{word.bits:6.2f} bits  {word.word}")

# %% Why this token? Contributions that add up, in nats.       saffu explain model "This is equivalent"
explanation = lm.explain("This is equivalent")
best = int(explanation.log_probabilities.argmax())
print(f"\nafter 'This is equivalent' comes {lm.tokenizer_.token(best)!r}, because of")
for term in sorted(explanation.terms[1:], key=lambda term: -term.values[best])[:3]:
    seen = "".join(lm.tokenizer_.token(token) for token in term.seen)
    print(f"  {term.name:<28} {seen!r:<22} {term.values[best]:+.2f}")
total = sum(term.values[best] for term in explanation.terms)
print(f"  all parts together {total:.4f}, the log-probability {explanation.log_probabilities[best]:.4f}\n")

# %% Words used in similar contexts.                           saffu embed model must
nearest = lm.word_vectors_.neighbors("must", 5)
print("near 'must':", ", ".join(f"{token.strip()} {cosine:.2f}" for token, cosine in nearest), "\n")

# %% Add documents, remove documents: exactly.                 saffu update model more.txt; saffu forget model more.txt
before = lm.perplexity(held_out)
lm.update(held_out)
print(f"updated with the held-out text: perplexity {lm.perplexity(held_out):.1f}")
lm.forget(held_out)
after = lm.perplexity(held_out)
print(f"forgotten again: perplexity {after:.1f}, exactly as before: {after == before}\n")

with tempfile.TemporaryDirectory() as folder:
    # %% Minimal pairs: is the acceptable sentence preferred?  saffu pairs model agreement.jsonl
    pairs = [
        {"sentence_good": "This method returns the value.", "sentence_bad": "This method return the value."},
        {"sentence_good": "The following values are used.", "sentence_bad": "The following values is used."},
    ]
    file = Path(folder) / "agreement.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    (result,) = evaluate_pairs(lm.model_, lm.tokenizer_, [file])
    print(f"pairs: {result['accuracy']:.0%} correct, {result['tie_rate']:.0%} ties\n")

    # %% Save it: a folder of safetensors and JSON.            saffu info model
    lm.save(Path(folder) / "model")
    again = saffu.load(Path(folder) / "model")
    print(f"saved and loaded: perplexity {again.perplexity(held_out):.1f} as before\n")

# %% Train a network next to the counts (needs torch).         saffu train books/ --epochs 1 --depth 1 --out model
config = saffu.preset("companion", epochs=1, depth=1)
both = saffu.SaffuLM(config).fit(train, dev=held_out).backprop(train, held_out)
for row in (both.log_[0], both.log_[-1]):
    print(f"{row['stage']:<12} bits per byte {row['dev_bits_per_byte']:.4f}")

# %% The paper's model: solved, then trained further.
#    saffu train books/ --split line --preset paper --block 32 --radius 4 --backprop --max-folds 2 --out paper
small = saffu.PaperConfig(block=32, radius=4, block_dimension=32, hidden_dimension=64, fold_tokens=10_000)
training = saffu.TrainingConfig(max_folds=2)
paper = saffu.SaffuLM(small).fit(train[:300], dev=held_out, training=training)
paper.backprop(train[:300], held_out, training)
for row in paper.log_:
    print(f"{row['stage']:<12} dev perplexity {row['dev_perplexity']:.1f}")
