"""Reports of runs, trained, simulated, or both, as one page and one JSON value.

  contents     that value: runs in columns, named tables and series; its files;
               how runs ended
  events       a sentence for each event of a journal; its lines on a terminal
  figures      draws it, and the losses and the last step of a run
  live         the page, which also follows a run while it trains

Read `contents` first.
"""
