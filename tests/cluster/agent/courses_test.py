"""What becomes of one agent, told step by step.

A course has a name, the options of `AgentCase.begin`, and steps. What others, and the worker,
say and do:

  n1 gone WHY, n1 done, worker notice WHY    as in `messages.Say`
  n1 certain n2          it cannot reach n2
  n1 finishes            its worker posts that it is ready to finish
  n1 beats 2             it has adopted view 2
  n1 shows 2 n0 n1       it tells of view 2, which has these members
  n1 hangs up, n1 refuses, n1 accepts    its connection closes; it takes no other; its host does
  n1 comes               it connects
  n1 asks                it tells that n9 asks in the log whether any member is alive
  newcomer               the agent has not joined
  soon n1 gone WHY       at once with the next step
  worker exits 1, stopped    it ends; it is stopped
  log 2 n0 n1: WHY       view 2 is in the log
  over, another, complete    the log says that no member is left; that another run has begun;
                         that all steps of the run are done
  away 3                 the folder fails three times
  asleep 60              the agent is suspended
  pass 0.5 n1 n2         half a second, in which n1 and n2 beat, and the worker

and what follows:

  view 2 -n0 n1: WHY     the agent is in view 2, which n0 is leaving
  unmade 2               no view 2 is in the log
  reads 2 TEXT, run 0    what the log has as view 2
  dialed n1, suspects n1 all that it has called, or suspects
  told gone WHY, silent  what it has said last; nothing
  warned WHY             all that it has logged
  runs, killed           its worker
  mistake, accident      whether the user must mend something: no other try would succeed
  lives, ends WHY, restarts WHY, fails ERROR WHY
"""

from absl.testing import parameterized

from tests import tables
from tests.cluster.agent import given

_COURSES = """
two deaths at once are one view numbers=(0,1,2,3,4)
  n1 refuses | n2 gone it ended | pass 0.0005 | unmade 2 | n3 certain n1 | n4 certain n1 |
  pass 0.02 | view 2 n0 n3 n4
who was suspended waits again
  pass 1.0 n1 n2 | n1 refuses | pass 0.1 n1 n2 | asleep 60 | pass 2.8 n1 n2 | unmade 2 |
  pass 0.6 n1 n2 | view 2 n0 n2
once the first is heard again others have a second
  pass 1.6 n1 | pass 2.3 | pass 0.8 n1 | unmade 2 | pass 0.5 n1 | view 2 n0 n1
the next member acts if the leader does not me=1
  n2 gone killed | pass 1.9 n0 | unmade 2 | pass 0.2 n0 | view 2 n0 n1: n2 left: killed
a minority lets others go first
  soon n1 gone killed | n2 gone killed | pass 0.9 | unmade 2 | pass 0.2 |
  view 2 n0: n1 left: killed; n2 left: killed
a minority that the others went on without
  soon n1 gone killed | n2 gone killed | log 2 n1 n2: n0 left: silent | pass 1.2 |
  ends the others continue without it: n0 left: silent
a folder that does not answer is asked again
  away 3 | n1 gone killed | pass 0.25 | unmade 2 | warned no folder. Trying again. | pass 0.2 |
  view 2 n0 n2
views that are told, of which one is missing me=2
  log 2 n0 n1 n2 n3: test | n0 shows 2 n0 n1 n2 n3 | view 2 n0 n1 n2 n3 | log 3 n0 n2 n3: test |
  log 4 n0 n2: test | n0 shows 4 n0 n2 | view 2 n0 n1 n2 n3 | pass 0.01 | view 4 n0 n2
its worker is done me=1
  worker done | worker exits 0 | pass 0.001 | ends
its worker is done, and its last words are read after its exit me=1
  worker exits 0 | worker done | pass 0.1 | ends | told done
its worker fails me=1
  worker exits 1 | pass 0.001 | ends its worker ended with exit status 1
its worker fails alone: it ends once one has said that the others go on without it me=1
  worker exits -11 | pass 0.001 | told gone its worker was killed by SIGSEGV | n0 shows 2 n0 n2 |
  pass 2.5 | lives | n2 beats 1 | pass 0.2 | lives | n2 beats 2 | pass 0.2 |
  ends its worker was killed by SIGSEGV
nobody is left numbers=(0,1)
  soon n1 gone killed | worker exits -9 | pass 0.9 | unmade 2 | pass 0.5 |
  restarts no member of view 1 is left
who came when others were done me=1
  n0 done | pass 9.9 n0 n2 | lives | pass 0.5 n0 n2 | ends
who did not hear what one said last me=1
  n0 finishes | worker finishes | n0 done | pass 9.9 n0 n2 | lives | pass 0.5 n0 n2 | ends
who finishes with others that are done, and still writes me=1
  n0 finishes | worker finishes | n2 finishes | n0 done | pass 10.4 n0 n2 | lives
who is done is left out with the dead me=1 numbers=(0,1,2,3)
  n0 done | n2 gone killed | pass 0.1 | view 2 n1 n3: n0 left: it is done; n2 left: killed
a closed connection is opened again, but not at once each time
  n1 hangs up | dialed n1 | pass 0.01 | n1 hangs up | pass 0.15 | dialed n1 | pass 0.1 |
  dialed n1 n1
one that does not refuse any more may be busy
  n1 refuses | pass 2.5 n2 | n1 accepts | told count 2 | told suspects ()
one that has become a member is suspected
  n5 refuses | n1 shows 2 n0 n1 n2 n5 | pass 0.1 | suspects n5
an error of its worker that ends the run me=1
  worker failed no such layer | told failed no such layer | fails RunFailedError no such layer
an error of a member that ends the run me=1
  n0 failed no such layer | silent | fails RunFailedError no such layer
an error of a member ends a newcomer too me=3
  n0 failed no such layer | silent | fails RunFailedError no such layer
an error of one that is no member me=1
  n5 failed no such layer | silent | lives
its worker ends because the run is over me=1
  over | worker exits 1 | pass 0.001 | restarts no member of view 1 is left
its worker ends because another run has begun me=1
  another | worker exits 1 | pass 0.001 | restarts another run has begun in the folder
a newcomer that finds nobody writes a view without members me=3
  newcomer | n0 gone killed | n1 gone killed | n2 gone killed | pass 1.3 |
  reads 2 no member of view 1 is left, run 0 | restarts no member of view 1 is left
it is the same run if this node was in it me=3 is_again=True
  newcomer | n0 refuses | n1 refuses | n2 refuses | pass 12.2 |
  reads 2 n3 asks whether any member of view 1 is alive, run 0 |
  reads 3 no member of view 2 is left, run 0
a newcomer asks first if only some have said that they are gone me=3
  newcomer | n1 gone killed | n0 refuses | n2 refuses | pass 12.2 |
  reads 2 n3 asks whether any member of view 1 is alive, run 0 |
  reads 3 no member of view 2 is left, run 0
it is another run if nobody is left of the former one me=3
  newcomer | n0 refuses | n1 refuses | n2 refuses | pass 12.2 |
  reads 2 n3 asks whether any member of view 1 is alive, run 0 |
  reads 3 no member of view 2 is left, run 3
no run begins again that is complete me=3
  newcomer | complete | n0 gone killed | n1 gone killed | n2 gone killed | pass 1.3 | unmade 2 |
  ends
a mistake of the user as the run begins me=1 numbers=(0,2)
  worker exits 2 | pass 0.001 | mistake
a mistake of the user that a member finds out late me=1
  newcomer | worker exits 2 | pass 0.001 | mistake
what a newcomer finds out beside others that train is its own me=1 numbers=(0,2)
  newcomer | worker exits 2 | pass 0.001 | accident
another exit status is no mistake of the user me=1
  worker exits 1 | pass 0.001 | accident
nor is this me=1
  worker exits 3 | pass 0.001 | accident
a worker that is stopped is killed
  pass 0.5 n1 n2 | stopped | pass 0.8 | runs | pass 0.4 | killed | worker exits -9 | pass 0.001 |
  told gone its worker was stopped for 1.0 s | told silent_secs 1.3
who is no member does not answer me=3
  n0 asks | pass 0.2 | unmade 3
who has no worker does not answer me=1
  n1 gone killed | n0 asks | pass 0.2 | unmade 3
a slow worker hands over
  worker notice it is slow | told notice it is slow | pass 0.1 | view 2 -n0 n1 n2
"""


class CoursesTest(given.AgentCase):

  @parameterized.parameters(*tables.read(_COURSES.replace("|\n", "|")))
  def test_course(self, begin, course):
    self.begin(**tables.parse_changes(" ".join(w for w in begin.split() if "=" in w)))
    self.play(course)
