"""Fakes of interfaces; each follows a script."""


class ScriptedCohort:
  """A `cohort.Cohort` of one member, where a script changes what is gathered.

  By key of `gather` it has what is called in turn, with what would be returned; or None.
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
