"""Outputs of a run: log, progress, figures, traces, summary.

  jsonl          metrics.jsonl, one JSON object per line; write and read
  summary        summary.json, and the hash of arrays in it
  result         summary and log of a run, for Python code
  progress       a bar, or lines for `grep`
  tensorboard    scalars for TensorBoard
  slot           a named interval of time: input of the two below
  chrome_trace   planned and measured steps for Perfetto
  plots          PNGs: loss, schedule
  table          columns, CSV, Markdown

Nothing here knows what is measured; whoever measures calls it.
"""
