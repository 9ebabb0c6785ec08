"""An event reaches the observers that override it."""

from perf_callbacks.kernel.engine.observer import Observer, Observers


def test_an_event_reaches_the_due_observers_that_override_it():
    class Late(Observer):
        steps = ()

        @property
        def due(self):
            return 3

        def step_ended(self, step):
            self.steps += (step,)

    observers, late = Observers(), Late()
    assert observers.due == Observer().due
    observers.add(Observer())
    observers.add(late)
    assert observers.due == 3
    for step in (1, 2, 3, 4):
        observers.step_ended(step)
    observers.step_began()
    observers.span_began("evaluation", 4)
    observers.span_ended()
    observers.loader_left(exhausted=False)
    observers.adopted({"gc_interval": 1}, 4)
    observers.steps_measured([])
    assert (late.steps, observers.proposals, observers.watching) == ((3, 4), {}, False)
