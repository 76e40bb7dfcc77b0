"""The flags `--page` and `--page_port` of commands that serve a page."""

from collections.abc import Callable

from absl import flags

flags.disclaim_key_flags()  # A flag is one of the command that defines it.


def define() -> Callable[[], int | None]:
  """Defines both flags.

  Returns a function for the port after parsing: 0 for any free one, None
  without a page.
  """
  page = flags.DEFINE_bool("page", False, "Serve a page on the run, to this machine only.")
  port = flags.DEFINE_integer(
      "page_port", 0, "Port of the page; 0: any free one.", lower_bound=0, upper_bound=65535
  )
  return lambda: port.value if page.value or port.present else None
