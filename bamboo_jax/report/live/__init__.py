"""A page on a run, live or over, or on several; start with `facts`.

facts      what is known of a run, as one JSON value; pure
cards      its nodes, in a grid of stages
words      what it says
history    losses, throughput and events of a log, thinned
feed       reads store, log and rows of a run, again and again
server     serves the page and its events; carries out its buttons
document   the page, empty, or with a value or a report in it
page.html  draws the value; needs nothing else
"""
