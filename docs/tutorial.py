# %% [markdown]
# # Tutorial
#
# Ten minutes with saffu, from text to a model that explains itself, changes exactly, and gets better with training.
# Paste the code into Python, or, in a checkout, open `docs/tutorial.ipynb` or run `python docs/tutorial.py`. It writes
# only into a temporary folder. Numbers depend on your version of Python, whose documentation is the text. The last two
# sections need PyTorch (`pip install '.[torch]'`).
#
# ## Text
# A text is any iterable of strings, one per document. Here, we use part of the English text that ships with
# Python and hold out every twentieth paragraph.

# %%
import itertools
import json
import tempfile
from pathlib import Path

import saffu
from saffu.text.default_corpus import default_corpus
from saffu.tools.minimal_pairs import evaluate_pairs

scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
paragraphs = list(itertools.islice(default_corpus(), 800))
train = [text for number, text in enumerate(paragraphs) if number % 20]
held_out = paragraphs[::20]
print(f"{len(train)} documents to count, {len(held_out)} held out; the first begins: {train[0][:60]!r}")

# %% [markdown]
# ## Count
# `fit` learns a tokenizer, counts n-grams, and solves for everything else. On the command line: `saffu train books/
# --out model`.

# %%
lm = saffu.SaffuLM().fit(train, dev=held_out)
print(lm)

# %% [markdown]
# How good is it? Bits per byte of the held-out text, next to n-gram models of the same text (`saffu eval model
# held-out.txt`):

# %%
score = lm.score(held_out)
print(f"{'this model':<10}  perplexity {score.perplexity:7.1f}   bits per byte {score.bits_per_byte:.3f}")
for name, baseline in lm.reference_scores(held_out).items():
    print(f"{name:<10}  perplexity {baseline.perplexity:7.1f}   bits per byte {baseline.bits_per_byte:.3f}")

# %% [markdown]
# ## Use it
# Generate (`saffu generate model "The function" --seed 1`). A model of 800 paragraphs is not an author, but
# it has picked up the style:

# %%
print("The function" + lm.generate("The function", seed=1, max_tokens=40))

# %% [markdown]
# How surprising is each word (`echo "…" | saffu score model --words`)?

# %%
for word in lm.surprisals("This is equivalent to a class."):
    print(f"{word.bits:6.2f} bits  {word.word}")

# %% [markdown]
# Words that occurred earlier in a document are expected to recur: the second time, the same line costs much less.
# That is the memory of the document, which belongs to the reader and never changes the model.

# %%
line = "A parser reads the text of the parser."
once, twice = lm.score([line]), lm.score([f"{line}\n{line}"])
print(f"a line alone {once.nll:.1f} nats, after itself {twice.nll - once.nll:.1f}")

# %% [markdown]
# Words used in similar contexts (`saffu embed model must`):

# %%
nearest = lm.word_vectors_.neighbors("must", 5)
print("near 'must':", ", ".join(f"{token.strip()} {cosine:.2f}" for token, cosine in nearest))

# %% [markdown]
# ## Why this token?
# Every prediction is a sum of contributions, one for each part of the context (`saffu explain model "This is
# equivalent"`):

# %%
explanation = lm.explain("This is equivalent")
best = int(explanation.log_probabilities.argmax())
print(f"after 'This is equivalent' comes {lm.tokenizer_.token(best)!r}, because of")
for term in sorted(explanation.terms[1:], key=lambda term: -term.values[best])[:3]:
    seen = "".join(lm.tokenizer_.token(token) for token in term.seen)
    print(f"  {term.name:<28} {seen!r:<22} {term.values[best]:+.2f}")
total = sum(term.values[best] for term in explanation.terms)
print(f"  all parts together {total:.4f}, the log-probability {explanation.log_probabilities[best]:.4f}")

# %% [markdown]
# ## Change it, exactly
# Counts add and subtract, so a model can learn documents and forget them, bit for bit (`saffu update`, `saffu
# forget`):

# %%
before = lm.perplexity(held_out)
lm.update(held_out)
print(f"updated with the held-out text: perplexity {lm.perplexity(held_out):.1f}")
lm.forget(held_out)
after = lm.perplexity(held_out)
print(f"forgotten again: perplexity {after:.1f}, exactly as before: {after == before}")

# %% [markdown]
# ## Save and test it
# A model is a folder of safetensors and JSON (`saffu info model`):

# %%
lm.save(folder / "model")
again = saffu.load(folder / "model")
print(f"saved and loaded: perplexity {again.perplexity(held_out):.1f} as before")

# %% [markdown]
# Minimal pairs: does it prefer the acceptable sentence (`saffu pairs model agreement.jsonl`)?

# %%
pairs = [
    {"sentence_good": "This method returns the value.", "sentence_bad": "This method return the value."},
    {"sentence_good": "The following values are used.", "sentence_bad": "The following values is used."},
]
file = folder / "agreement.jsonl"
file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
(result,) = evaluate_pairs(lm.model_, lm.tokenizer_, [file])
print(f"pairs: {result['accuracy']:.0%} correct, {result['tie_rate']:.0%} ties")

# %% [markdown]
# ## Train it further
# With PyTorch, a small transformer is trained next to the counts, and a gate mixes the two
# (`saffu train books/ --minutes 5 --out model`). The best state on held-out text is kept, so training never makes a
# model worse on it. One pass over 760 paragraphs, as here, cannot gain much; minutes and more text can.

# %%
both = saffu.SaffuLM().train(train, held_out, epochs=1)
print(f"counted      bits per byte {score.bits_per_byte:.4f}")
print(f"and trained  bits per byte {both.score(held_out).bits_per_byte:.4f}")

# %% [markdown]
# ## The paper's model
# The explicit solution of Williams and Zhao, solved from counts and then trained (`saffu train books/ --split line
# --preset paper --backprop --out paper`):

# %%
shape = {"block": 32, "radius": 4, "block_dimension": 32, "hidden_dimension": 64}
small = saffu.PaperConfig(**shape, document_shards=8, fold_tokens=10_000)
training = saffu.TrainingConfig(max_folds=2)
paper = saffu.SaffuLM(small).fit(train[:300], dev=held_out, training=training)
paper.backprop(train[:300], held_out, training)
for row in paper.log_:
    print(f"{row['stage']:<14}  dev perplexity {row['dev_perplexity']:.1f}")

# %% [markdown]
# ## Next
# [Recipes](recipes.md) for real work, [Choose your model](choose.md), [Commands](commands.md), [Python](api.md).

# %%
scratch.cleanup()
