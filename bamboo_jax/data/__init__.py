"""Training data as a pure function of (seed, step, microbatch).

Nothing keeps a position: any node can ask for any microbatch again, which is
what lets a step go on after a death.

  batches    samples cut into steps and microbatches
  source     where samples come from, by name; built of those below
  samples    what a source is
  prefetch   microbatches prepared ahead, in a thread
  arrays     samples that lie in arrays, for the user's own data
  draws      random bits as a function of integers

  readers, corpus   files to documents; documents to a text with a manifest
  kinds             what a file seems to be that is no text
  tokens, bpe       a text as bytes, or as byte pairs
  windows           a text cut into samples, in a new order each epoch
  masked            masked tokens in pairs of windows, for BERT
  pairs             sentences in two columns, for translation
  image_folder      images in a folder for each class; augmented
  stripes           generated images with a rule that can be learnt
  markov            synthetic samples with a known best loss

Read `samples`, then `batches`.
"""
