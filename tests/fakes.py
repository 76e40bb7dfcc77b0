"""Fakes of interfaces; each follows a script."""


class ScriptedCohort:
  """A `cohort.Cohort` of one member, where a script changes what is gathered.

  Args:
    cohort: Whose nodes and views these are.
    script: By key of `gather`, what is called in turn, at each time, with what
      would be returned, and returns or raises something else; None does not.
  """

  def __init__(self, cohort, script):
    self.number = cohort.number
    self._cohort = cohort
    self._script = {key: list(calls) for key, calls in script.items()}

  @property
  def view(self):
    return self._cohort.view

  @property
  def newest(self):
    return self._cohort.newest

  @property
  def hosted(self):
    return self._cohort.hosted

  def host_of(self, node):
    return self._cohort.host_of(node)

  def wait_start(self):
    return self._cohort.wait_start()

  def enter(self):
    self._cohort.enter()

  def gather(self, key, value):
    said = self._cohort.gather(key, value)
    calls = self._script.get(key)
    call = calls.pop(0) if calls else None
    return call(said) if call else said

  def check(self):
    self._cohort.check()

  def wait_change(self, timeout_secs):
    return self._cohort.wait_change(timeout_secs)

  def wait_members(self, count):
    self._cohort.wait_members(count)

  def adopt(self, number):
    self._cohort.adopt(number)

  def arrived_secs(self, number):
    return self._cohort.arrived_secs(number)

  def settled(self, steps):
    self._cohort.settled(steps)

  def report(self, kind, **facts):
    self._cohort.report(kind, **facts)
