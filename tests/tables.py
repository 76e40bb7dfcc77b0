"""Tables of tests, written as text: what a user types, and below it what comes of it."""

import ast
import re


def read(text):
  """Returns the pairs of a table; of each, the second line is indented."""
  lines = [line.strip() for line in text.strip().splitlines()]
  return [*zip(lines[::2], lines[1::2], strict=True)]


def read_rows(text):
  """Returns the rows of a table with two or more spaces between columns; "-" is an empty one."""
  rows = [re.split(" {2,}", line.strip()) for line in text.strip().splitlines()]
  return [tuple("" if cell == "-" else cell for cell in row) for row in rows]


def parse_changes(words):
  """Returns changes written as "mode=none spares=2"; what is no value of Python is text."""
  found = {}
  for name, _, value in (word.partition("=") for word in words.split()):
    try:
      found[name] = ast.literal_eval(value)
    except (SyntaxError, ValueError):
      found[name] = value
  return found
