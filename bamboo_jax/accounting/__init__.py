"""What a run cost, and where its nodes' time went; measured or simulated.

The time of all live nodes is split by kind, and the parts must add up to the
whole. Dollars follow from node time and a table of prices.

  account      running totals, also those in a log, and the result: time by kind,
               dollars, samples, value; the split of one measured step
  machines     speed and memory of an instance or GPU, from gpus.csv and
               instances.csv
  prices       dollars per hour of an instance, from instances.csv

Read `account` first.
"""
