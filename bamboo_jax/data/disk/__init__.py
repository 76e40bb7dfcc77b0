"""Data on disk: files of tokens, of texts and of records.

All become tokens, which stay on disk: a sample is read when it is needed.

  files         the source of paths; start here
  packing       tokens cut into samples, documents kept whole or apart
  token_files   formats of tokens, read in place
  documents     formats of texts and records, part by part
  tokenizing    documents to files of tokens, in parallel
"""
