"""When a newer view counts as compiled."""

from absl.testing import absltest

from bamboo_jax.cluster import views
from bamboo_jax.train import background_compiler


class Cohort:

  def __init__(self):
    self.view = self.newest = views.View(3, (), "", era=0)


class NewestReadyTest(absltest.TestCase):

  def test_newest_ready(self):
    cohort = Cohort()
    compiler = background_compiler.BackgroundCompiler(
        None, cohort, None, evaluate=False
    )
    self.addCleanup(compiler.close)
    self.assertEqual(compiler.newest_ready(), 3)
    # In another era nothing is compiled for it beforehand.
    cohort.newest = views.View(4, (), "", era=1)
    compiler.newest_ready()
    compiler.wait()
    self.assertTrue(compiler.is_idle)
    self.assertEqual(compiler.newest_ready(), 4)
    cohort.view = cohort.newest = views.View(9, (), "", era=1)
    self.assertEqual(compiler.newest_ready(), 9)

  def test_a_job_that_fails_makes_nothing_ready(self):
    cohort = Cohort()
    compiler = background_compiler.BackgroundCompiler(
        None, cohort, None, evaluate=False
    )
    self.addCleanup(compiler.close)
    compiler._submit(compiler._prepare, 5, [self.fail])
    compiler.wait()
    self.assertEqual(compiler.newest_ready(), 3)
