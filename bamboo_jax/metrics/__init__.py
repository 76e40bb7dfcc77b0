"""Outputs of a run: log, progress, figures, traces, summary.

  jsonl        metrics.jsonl, one JSON object per line; write and read what
               `training.record.journal` puts into it; nodes.jsonl: nodes that start
               or are removed, and faults that hit them
  summary      summary.json, and the hash of arrays in it; with the log, for Python code
  progress     a bar, or lines for `grep`
  loggers      CSV, TensorBoard, Weights & Biases, and those of the user's own
  rows         the last steps of each node, planned and measured; for Perfetto, too
  palette      the colours of pages and figures
  plots        figures: style, legends, PNG, PDF and SVG
  table        columns, CSV, Markdown

These modules are independent of the measured quantities; the measuring code
calls them.
"""
