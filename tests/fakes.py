"""Fakes of interfaces; each follows a script."""


class ScriptedCohort:
  """A `cohort.Cohort` of one member, where a script changes what is gathered.

  Args:
    cohort: Whose nodes and views these are.
    script: By key of `gather`, what is called in turn, at each time, with what
      would be returned, and returns or raises something else; None does not.
  """

  def __init__(self, cohort, script):
    self._cohort = cohort
    self._script = {key: list(calls) for key, calls in script.items()}

  def __getattr__(self, name):
    return getattr(self._cohort, name)

  def gather(self, key, value):
    said = self._cohort.gather(key, value)
    calls = self._script.get(key)
    call = calls.pop(0) if calls else None
    return call(said) if call else said
