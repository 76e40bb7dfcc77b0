"""Training data as a pure function of (seed, step, microbatch).

Nothing keeps a position: any node can ask for any microbatch again, so a step
can continue after a death.

  batches    samples grouped into steps and microbatches, prepared ahead in a
             thread
  source     sources by name; built from the modules below
  samples    the interface of a source; samples from arrays in memory, for the
             user's own data
  draws      random bits as a function of integers

  disk              files of tokens, texts or records, by their paths
  mixture           several sources by weights
  corpus            a text in memory: its manifest, and that of Python itself
  vocabularies      a text as bytes, or as tokens of a trained tokenizer
  chat              messages as tokens, by a chat template; which are learned
  masked            masked tokens in pairs of windows, for BERT
  markov            synthetic samples with a known best loss

Read `samples`, then `batches`.
"""
