"""Where time that is spent in known places of a Lightning fit turns up.

Most of it on a clock that only moves there, so that all of it can be told to the microsecond.
"""

import functools
import gc
import time
from types import SimpleNamespace

import pytest
import tiny
import tiny_lightning
import torch

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.records.fit_records import Span

STAGES = ("data", "forward", "backward", "optimizer", "gc", "other")
SLEEP = 0.012
SLOW = (4, 6)


class Sleeper:
    """Sleeps once in each of some steps, and says for how long."""

    def __init__(self, clock=time.perf_counter, sleep=time.sleep, steps=SLOW):
        self.clock, self.sleep, self.steps = clock, sleep, steps
        self.slept = {}
        self.ours = None

    def __call__(self, *_args, **_kwargs):
        watching = self.ours._watch
        step = watching.steps + 1 if watching else 0
        if step in self.steps and step not in self.slept:
            start = self.clock()
            self.sleep(SLEEP)
            self.slept[step] = self.clock() - start


def sleeping_before(sleep, method):
    @functools.wraps(method)
    def call(*args, **kwargs):
        sleep()
        return method(*args, **kwargs)

    return call


def override(name, owner="module"):
    """A slower method."""

    def install(fit, sleep):
        owned = getattr(fit, owner)
        object.__setattr__(owned, name, sleeping_before(sleep, getattr(owned, name)))

    return install


def hook(name, *, last=False):
    """Another callback that is slow."""

    def install(fit, sleep):
        slow = type("Slow", (fit.kinds.Callback,), {name: lambda *_args, **_kwargs: sleep()})()
        fit.trainer.callbacks.insert(len(fit.trainer.callbacks) if last else 0, slow)

    return install


def item(fit, sleep):
    fit.loader.dataset.__class__ = type(
        "Slow", (tiny_lightning.Numbers,), {"__getitem__": sleeping_before(sleep, tiny_lightning.Numbers.__getitem__)}
    )


def layer(fit, sleep):
    fit.module.net[0].register_forward_pre_hook(sleep)


def gradient(fit, sleep):
    fit.module.net[0].weight.register_hook(sleep)


def optimizer(fit, sleep):
    original = fit.module.configure_optimizers

    def configure():
        made = original()
        for one in [made["optimizer"]] if isinstance(made, dict) else made[0]:
            one.register_step_post_hook(sleep)
        return made

    fit.module.configure_optimizers = configure


def after_closure(fit, sleep):
    def optimizer_step(_epoch, _batch_idx, optimizer, closure):
        closure()
        sleep()
        optimizer.step()

    object.__setattr__(fit.module, "optimizer_step", optimizer_step)


def logger(fit, sleep):
    fit.trainer.loggers = [fit.kinds.CSVLogger(fit.trainer.default_root_dir)]
    override("log_metrics", "logger")(SimpleNamespace(logger=fit.trainer.loggers[0]), sleep)


def collection(fit, sleep):
    def linger(phase, _info):
        if phase == "start":
            sleep()

    def collect(*_):
        gc.callbacks.append(linger)
        gc.collect(0)
        gc.callbacks.remove(linger)

    fit.module.net[0].register_forward_pre_hook(collect)


HOOKS = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)
COMMON = {
    "the dataset": ("data", item),
    "the collator": ("data", override("collate_fn", "loader")),
    "a layer": ("forward", layer),
    "training_step": ("forward", override("training_step")),
    "a gradient": ("backward", gradient),
    "backward of the module": ("backward", override("backward")),
    "the optimizer": ("optimizer", optimizer),
    "a logger": ("other", logger),
    "on_train_batch_start of the module": ("other", override("on_train_batch_start")),
    "on_train_batch_end of the module": ("other", override("on_train_batch_end")),
    "a garbage collection in the model": ("gc", collection),
}
TRANSFER = {
    "on_before_batch_transfer": ("data", override("on_before_batch_transfer")),
    "transfer_batch_to_device": ("data", override("transfer_batch_to_device")),
    "on_after_batch_transfer": ("data", override("on_after_batch_transfer")),
}
AUTOMATIC = {
    "clipping": ("optimizer", override("configure_gradient_clipping")),
    "optimizer_step of the module": ("optimizer", override("optimizer_step")),
    "an optimizer_step that calls the closure itself": ("optimizer", after_closure),
    "optimizer_zero_grad of the module": ("optimizer", override("optimizer_zero_grad")),
    "lr_scheduler_step of the module": ("optimizer", override("lr_scheduler_step")),
    "on_before_optimizer_step of the module": ("other", override("on_before_optimizer_step")),
    **{f"{name} of another callback": ("other", hook(name)) for name in HOOKS},
    **{f"{name} of a later callback": ("other", hook(name, last=True)) for name in HOOKS},
}


def zero_grad(fit, sleep):
    original = fit.module.optimizers

    def slowed():
        optimizers = original()
        for one in optimizers:
            if not hasattr(one, "slow"):
                one.slow = True
                override("zero_grad", "one")(SimpleNamespace(one=one), sleep)
        return optimizers

    fit.module.on_fit_start = slowed


MANUAL = {
    "zero_grad": ("optimizer", zero_grad),
    **{
        f"{name} of another callback": ("other", hook(name))
        for name in HOOKS
        if name != "on_before_zero_grad"  # which Lightning doesn't call here
    },
}
PLACES = (
    [("Automatic", name, *place) for name, place in (COMMON | TRANSFER | AUTOMATIC).items()]
    + [("Manual", name, *place) for name, place in (COMMON | TRANSFER | MANUAL).items()]
    + [("Iterating", name, *place) for name, place in (COMMON | AUTOMATIC).items()]
)


def fit(directory, install, sleep, *, module="Automatic", of="lightning", **options):
    """The steps of a fit in which there is a sleep where `install` puts it."""
    kinds = tiny_lightning.tree(of)
    sleep.ours = ours = kinds.PerfCallback(PerfConfig(flops="off"))
    usual = {"max_steps": 14, "gradient_clip_val": None} if module == "Manual" else {"accumulate_grad_batches": 2}
    trainer = tiny_lightning.trainer(directory, ours, of=of, **{"max_steps": 7} | usual | options)
    running = SimpleNamespace(
        kinds=kinds,
        trainer=trainer,
        module=getattr(kinds, module)(),
        loader=tiny_lightning.loader(120),
        val=tiny_lightning.loader(4),
    )
    install(running, sleep)
    trainer.fit(running.module, running.loader, running.val if "val_check_interval" in options else None)
    return {step["step"]: step for step in tiny.steps(directory)}


@pytest.fixture
def sleeper(clock):
    """Sleeps on a clock that does not move otherwise."""
    return Sleeper(clock, clock.sleep)


@pytest.mark.parametrize("where", PLACES, ids=[f"{module}: {place}" for module, place, *_ in PLACES])
def test_time_is_in_its_stage_and_in_no_other(tmp_path, sleeper, where):
    module, place, owner, install = where
    of = [*tiny_lightning.FRAMEWORKS][len(place) % 2]
    steps = fit(tmp_path, install, sleeper, module=module, of=of)
    assert sleeper.slept.keys() == {*SLOW}
    for stage in (*STAGES, "step"):
        expected = {number: SLEEP if number in SLOW and stage in {owner, "step"} else 0 for number in steps}
        assert {number: step[f"{stage}_time"] for number, step in steps.items()} == pytest.approx(expected, abs=1e-6)


class PlainIterator:
    """An iterable that is no loader, and has no length."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


def test_the_wait_for_an_iterator_is_data(tmp_path, sleeper):
    """It is fetched one batch ahead: a slow row of a step is waited for in the step before."""

    def install(fit, sleep):
        item(fit, sleep)
        fit.loader = PlainIterator(fit.loader)

    steps = fit(tmp_path, install, sleeper)
    assert sum(step["data_time"] for step in steps.values()) == pytest.approx(sum(sleeper.slept.values()))
    assert sum(step["step_time"] for step in steps.values()) == pytest.approx(sum(sleeper.slept.values()))


def test_an_iterator_that_is_made_between_epochs_is_data(tmp_path, sleeper):
    class Lingering(tiny_lightning.Numbers):
        def __iter__(self):
            sleeper()
            return iter([self[index] for index in range(self.rows)])

    class Stream(Lingering, torch.utils.data.IterableDataset):
        __len__ = None

    def install(fit, _):
        fit.loader = torch.utils.data.DataLoader(Stream(16), batch_size=4)

    sleeper.steps = (3, 5, 7)
    steps = fit(tmp_path, install, sleeper, max_steps=8)
    assert sleeper.slept.keys() == {3, 5, 7}
    assert {number for number, step in steps.items() if step["data_time"]} == {3, 5, 7}
    assert sum(step["step_time"] for step in steps.values()) == pytest.approx(sum(sleeper.slept.values()))


def saving(fit, sleep):
    fit.trainer.callbacks.append(fit.kinds.callbacks.ModelCheckpoint(every_n_train_steps=2, save_top_k=-1))


def saving_callback(*, last):
    """Another callback that saves a checkpoint by itself."""

    def install(fit, sleep):
        def save(_self, trainer, *arguments):
            if trainer.global_step in {2, 4, 6, 8} and arguments[-1] % 2:
                trainer.save_checkpoint(f"{trainer.default_root_dir}/{trainer.global_step}.ckpt")

        slow = type("Saving", (fit.kinds.Callback,), {"on_train_batch_end": save})()
        fit.trainer.callbacks.insert(len(fit.trainer.callbacks) if last else 0, slow)

    return install


def both(*installs):
    def install(fit, sleep):
        for one in installs:
            one(fit, sleep)

    return install


EVALUATING = {"val_check_interval": 4}
ASIDE = {
    "validation_step": ("evaluation", override("validation_step"), EVALUATING),
    "transfer of a validation batch": (
        "evaluation",
        override("collate_fn", "val"),
        EVALUATING,
    ),
    **{
        f"{name} of another callback": ("evaluation", hook(name), EVALUATING)
        for name in ("on_validation_start", "on_validation_batch_end", "on_validation_end")
    },
    "on_save_checkpoint of the module": ("checkpoint", both(saving, override("on_save_checkpoint")), {}),
    "on_save_checkpoint of another callback": ("checkpoint", both(saving, hook("on_save_checkpoint")), {}),
    "an earlier callback that saves": (
        "checkpoint",
        both(saving_callback(last=False), override("on_save_checkpoint")),
        {},
    ),
    "a later callback that saves": (
        "checkpoint",
        both(saving_callback(last=True), override("on_save_checkpoint")),
        {},
    ),
}


@pytest.mark.parametrize("place", ASIDE)
def test_validations_and_checkpoints_are_in_no_step_and_the_steps_they_fall_in_are_in_no_row(tmp_path, sleeper, place):
    kind, install, options = ASIDE[place]
    sleeper.steps = tuple(range(3, 11))
    steps = fit(tmp_path, install, sleeper, max_steps=9, **options)
    assert sleeper.slept.keys() == {3, 5, 7, 9}
    assert {number: step["excluded"] for number, step in steps.items() if number > 1} == {
        number: kind if number in sleeper.slept else None for number in range(2, 10)
    }
    assert {step["step_time"] for step in steps.values()} == {0.0}
    spans = {span.step + 1: span.seconds for span in tiny.records(tmp_path, Span) if span.kind == kind}
    assert spans == pytest.approx(sleeper.slept)


@pytest.mark.parametrize("place", ["a layer", "the optimizer"])
def test_on_the_real_clock_a_sleep_is_in_its_stage_and_stages_sum_to_the_step(tmp_path, place):
    owner, install = (COMMON | AUTOMATIC)[place]
    sleep = Sleeper()
    steps = fit(tmp_path, install, sleep)
    assert all(steps[number][f"{owner}_time"] > seconds - 1e-6 for number, seconds in sleep.slept.items())
    for step in steps.values():
        assert sum(step[f"{stage}_time"] for stage in STAGES) == pytest.approx(step["step_time"], abs=1e-6)
