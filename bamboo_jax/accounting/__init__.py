"""What a run cost, and where its nodes' time went; measured or simulated.

The time of all live nodes is split by kind, and the parts must add up to the
whole. Dollars follow from node time and a table of prices.

  account      the result: time by kind, dollars, samples, value; the split of
               one measured step
  ledger       running totals; rolls back to a mark
  machines     speed and memory of an instance, from gpus.csv and instances.csv
  peaks        products per second of GPUs at most
  prices       dollars per hour of an instance, from prices.csv
  runs         the account of a run that trained, from its log

Read `account` first.
"""
