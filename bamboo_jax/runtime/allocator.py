"""x."""


def keep_freed_memory():
  pass
