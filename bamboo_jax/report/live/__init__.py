"""A page on a run, live or over, or on several; start with `facts`.

facts      what is known of a run, as one JSON value: losses, throughput and events of its log;
           its nodes, as cards in a grid of stages; pure
words      what it says; the page itself, empty, or with a value or a report in it
feed       reads store, log and rows of a run, again and again
server     serves the page and its events; carries out its buttons
page.html  draws the value; needs nothing else
"""
