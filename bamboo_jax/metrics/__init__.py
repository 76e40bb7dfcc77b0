"""Outputs of a run: log, progress, figures, traces, summary.

  jsonl          metrics.jsonl, one JSON object per line; write and read what
                 `training.record.journal` puts into it
  nodes          nodes.jsonl: nodes that start or are removed, and faults that hit them
  summary        summary.json, and the hash of arrays in it
  result         summary and log of a run, for Python code
  progress       a bar, or lines for `grep`
  logger         the protocol of loggers, and those of the user's own
  loggers        CSV, TensorBoard, Weights & Biases
  slot           a named interval of time: input of traces and of schedule_plot
  rows           the last steps of each member of a cluster
  chrome_trace   planned and measured steps for Perfetto
  palette        the colours of pages and figures
  plots          figures: style, legends, PNG, PDF and SVG
  loss_plot      losses of runs, with deaths marked
  schedule_plot  a step, planned and measured
  table          columns, CSV, Markdown

These modules are independent of the measured quantities; the measuring code
calls them.
"""
