"""What a run cost, and where its nodes' time went; measured or simulated.

The time of all live nodes is split by kind, and the parts must add up to the
whole. Dollars follow from node time and a table of prices.

  account      the result: time by kind, dollars, samples, value; where the time
               of one measured step went
  ledger       adds a run up as it goes; rolls back to a mark
  machines     what an instance can do, from gpus.csv and instances.csv
  prices       dollars per hour of an instance, from prices.csv
  runs         the account of a run that trained, from its log

Read `account` first.
"""
