"""However a fit ends, and whatever breaks in us: everything is as it was, and training never notices."""

import gc
import signal

import pytest
import tiny
import tiny_lightning
from counted import bits
from faults import ERRORS, Fault, as_found, break_clock, ended, faults, warnings
from sampling import sampled

from perf_callbacks.kernel.failures import describe
from perf_callbacks.kernel.records.fit_records import Summary

HOOKS = (
    "setup",
    "on_fit_start",
    "on_sanity_check_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_batch_end",
    "on_validation_end",
    "on_save_checkpoint",
    "on_train_epoch_end",
    "on_train_end",
    "on_fit_end",
    "teardown",
)
METHODS = {
    "setup of the module": lambda fit: (fit.module, "setup"),
    "configure_optimizers": lambda fit: (fit.module, "configure_optimizers"),
    "on_train_start of the module": lambda fit: (fit.module, "on_train_start"),
    "on_train_epoch_start of the module": lambda fit: (fit.module, "on_train_epoch_start"),
    "the collator": lambda fit: (fit.loader, "collate_fn"),
    "transfer_batch_to_device": lambda fit: (fit.module, "transfer_batch_to_device"),
    "training_step": lambda fit: (fit.module, "training_step"),
    "the backward": lambda fit: (fit.module, "backward"),
    "clipping": lambda fit: (fit.module, "configure_gradient_clipping"),
    "optimizer_step": lambda fit: (fit.module, "optimizer_step"),
    "optimizer_zero_grad": lambda fit: (fit.module, "optimizer_zero_grad"),
    "lr_scheduler_step": lambda fit: (fit.module, "lr_scheduler_step"),
    "validation_step": lambda fit: (fit.module, "validation_step"),
    "save_checkpoint": lambda fit: (fit.trainer.strategy, "save_checkpoint"),
    "on_train_end of the module": lambda fit: (fit.module, "on_train_end"),
}
PLACES = (*HOOKS, *METHODS)
BEFORE_US = {"setup", "on_fit_start", "on_sanity_check_start", "on_train_start", "setup of the module"}
BEFORE_US |= {"configure_optimizers"}
AFTER_US = {"on_fit_end", "teardown", "on_train_end of the module"}
EARLY = BEFORE_US | {"on_train_start of the module", "on_train_epoch_start", "on_train_epoch_start of the module"}


class Bomb:
    """Raises at one place once it is reached in the third step, or wherever it is reached first after that."""

    def __init__(self, place, error, *, loud):
        self.place, self.error, self.loud, self.armed = place, error, loud, True
        if place in HOOKS:
            setattr(self, place, self.explode)

    def explode(self, *_args, **_kwargs):
        early = self.fit.trainer.global_step < 2 and self.place not in EARLY
        if self.armed and not early:
            raise self.error

    def on_exception(self, *_):
        if self.loud:
            raise ValueError("and I fail as well")

    def put(self, fit):
        self.fit = fit
        if self.place in METHODS:
            owner, name = METHODS[self.place](fit)
            inner, explode = getattr(owner, name), self.explode

            def call(*args, **kwargs):
                explode()
                return inner(*args, **kwargs)

            object.__setattr__(owner, name, call)


class Saving:
    """Saves a checkpoint every second step."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step % 2 == 0 and batch_idx % 2:
            trainer.save_checkpoint(f"{trainer.default_root_dir}/saved.ckpt")


class Collecting:
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        gc.collect(0)


class Losses:
    def __init__(self):
        self.losses = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())


@pytest.fixture(autouse=True)
def _interruptible():
    """After one interrupt, Lightning ignores the next."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


class Fit:
    """A trainer of either import tree, with others' callbacks around ours."""

    def __init__(self, directory, *callbacks, of="lightning", **options):
        kinds = tiny_lightning.tree(of)
        self.callbacks = [self.of(kinds, one) for one in callbacks]
        self.ours = next(one for one in self.callbacks if isinstance(one, kinds.PerfCallback))
        self.module, self.loader = kinds.Automatic(), tiny_lightning.loader(32)
        self.trainer = tiny_lightning.trainer(
            directory,
            *self.callbacks,
            of=of,
            **{"max_steps": 4, "accumulate_grad_batches": 2, "val_check_interval": 4, "limit_val_batches": 1} | options,
        )

    @staticmethod
    def of(kinds, one):
        """A callback of the tree that the trainer is of."""
        if one == "ours":
            return kinds.PerfCallback()
        if isinstance(one, kinds.Callback):
            return one
        one.__class__ = type(type(one).__name__, (type(one), kinds.Callback), {})
        return one

    def run(self):
        self.trainer.fit(self.module, self.loader, tiny_lightning.loader(4))


def belongings(fit):
    """Functions, hooks and callbacks on the objects of a fit, and the state of the process."""
    trainer, loop = fit.trainer, fit.trainer.fit_loop
    owners = [trainer, loop, loop.epoch_loop, loop.epoch_loop.val_loop, loop.epoch_loop.automatic_optimization]
    owners += [trainer.strategy, trainer.precision_plugin, trainer._logger_connector, fit.module, fit.loader]
    return as_found(*owners) | {"callbacks": [id(one) for one in trainer.callbacks if one]}


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:Detected KeyboardInterrupt")
@pytest.mark.parametrize(
    ("place", "of", "late", "loud", "error"),
    sampled(PLACES, [*tiny_lightning.FRAMEWORKS], [False, True], [False, True], ERRORS),
    ids=repr,
)
def test_after_an_exception_everything_is_as_before_and_the_next_fit_is_measured(  # noqa: PLR0917 sampled
    tmp_path, place, of, late, loud, error
):
    bomb = Bomb(place, error, loud=loud)
    fit = Fit(tmp_path, Saving(), *([bomb, "ours"] if late else ["ours", bomb]), of=of)
    bomb.put(fit)
    before = belongings(fit)

    expected = ValueError if loud else SystemExit if isinstance(error, KeyboardInterrupt) else type(error)
    with pytest.raises(expected):
        fit.run()
    assert belongings(fit) == before

    if place in BEFORE_US:
        assert not (tmp_path / "perf_callbacks").exists()
    else:
        over = place in AFTER_US or (place == "on_train_end" and not late)
        assert ended(tmp_path).failure == (None if over else describe(error))

    bomb.armed = bomb.loud = False
    again = Fit(tmp_path / "again", fit.ours, of=of)
    again.run()
    assert again.ours is fit.ours
    assert (again.ours.summary.steps, again.ours.summary.failure) == (4, None)


def test_a_second_fit_after_an_exception_goes_on_in_the_same_trainer(tmp_path):
    bomb = Bomb("training_step", RuntimeError("no more"), loud=False)
    fit = Fit(tmp_path, "ours", bomb)
    bomb.put(fit)
    with pytest.raises(RuntimeError, match="no more"):
        fit.run()
    bomb.armed = False
    fit.run()
    assert fit.trainer.global_step == fit.ours.summary.step == 4
    assert fit.ours.summary.failure is None


def test_what_nobody_tells_us_of_is_put_back_by_the_next_fit(tmp_path, monkeypatch):
    monkeypatch.setattr("perf_callbacks.integrations.methods.exits", lambda *_, **__: None)
    bomb = Bomb("training_step", RuntimeError("no more"), loud=True)
    fit = Fit(tmp_path, bomb, "ours")
    bomb.put(fit)
    before = belongings(fit)
    with pytest.raises(ValueError, match="and I fail as well"):
        fit.run()
    assert belongings(fit) != before
    bomb.armed = bomb.loud = False
    fit.run()
    assert belongings(fit) == before
    (summary,) = tiny.records(tmp_path, Summary, attempt=0)
    assert summary.failure == "another fit began"


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_train_batch_end", "on_train_epoch_end"])
def test_a_stop_iteration_of_another_callback_does_what_it_did_without_us(tmp_path, hook):
    def stop(trainer, *_args, **_kwargs):
        if trainer.global_step == 2:
            raise StopIteration

    def fit(directory, *callbacks):
        stopper = tiny_lightning.tree().Callback()
        setattr(stopper, hook, stop)
        trainer = tiny_lightning.trainer(directory, *callbacks, stopper, max_steps=-1, max_epochs=2)
        trainer.fit(tiny_lightning.tree().Automatic(), tiny_lightning.loader(12))
        return trainer.global_step, trainer.current_epoch, trainer.fit_loop.epoch_loop._batches_that_stepped

    ours = tiny_lightning.tree().PerfCallback()
    found = fit(tmp_path / "with", ours)
    assert found == fit(tmp_path / "without")
    assert ours.summary.steps == found[0]


def outcome(fit, losses):
    """What training came to, to the last bit."""
    return losses.losses, bits(fit.module)


def around_ours(directory, **options):
    losses = Losses()
    fit = Fit(directory, Collecting(), Saving(), losses, "ours", **options)
    before = belongings(fit)
    fit.run()
    assert belongings(fit) == before
    return outcome(fit, losses), fit


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    losses = Losses()
    fit = Fit(tmp_path_factory.mktemp("undisturbed"), Collecting(), Saving(), losses, "ours")
    fit.ours.enabled = False
    fit.run()
    return outcome(fit, losses)


FAULTS = faults(
    often={
        "kernel.engine.ledger.Ledger": "take_row",
        "kernel.engine.ratios": "metrics",
        "integrations.methods": "exits",
        "kernel.process.patches.Patches": "method",
        "integrations.lightning_hooks.LightningHooks": "log_row",
        "integrations.lightning_watch.TrainerWatch": "_end_batch",
    },
    twice={
        "integrations.methods": "spans",
        "integrations.lightning_hooks": "steps_done first",
    },
    once={
        "integrations.methods": "turns",
        "integrations.lightning_hooks": "_Afterwards Meanwhile TrainerWatch",
        "integrations.lightning_watch": "_closure_is_enclosed",
        "integrations.lightning_hooks.LightningHooks": "_place _last_state",
        "integrations.lightning_watch.TrainerWatch": "install watch_ends _training_step _settle",
    },
    turn=0,
)


@pytest.mark.parametrize("reading", [*range(16), 21, 34, 55])
def test_a_mark_that_fails_costs_one_warning_and_nothing_else(tmp_path, monkeypatch, caplog, undisturbed, reading):
    break_clock(monkeypatch, reading, StopIteration)
    found, _ = around_ours(tmp_path)
    assert found == undisturbed
    assert ["a bug of ours" in text for text in warnings(caplog)] == [True]


@pytest.mark.parametrize(("part", "first"), FAULTS)
def test_a_part_of_ours_that_breaks_costs_one_warning_and_nothing_else(  # noqa: PLR0917 fixtures
    tmp_path, monkeypatch, caplog, undisturbed, part, first
):
    fault = Fault(monkeypatch, part, first, StopIteration)
    found, _ = around_ours(tmp_path)
    assert found == undisturbed
    assert fault.happened
    assert ["a bug of ours" in text for text in warnings(caplog)] == [True]


@pytest.mark.parametrize("of", tiny_lightning.FRAMEWORKS)
def test_measuring_changes_no_bit_of_what_training_comes_to(tmp_path, caplog, undisturbed, of):
    found, fit = around_ours(tmp_path, of=of)
    assert found == undisturbed
    assert fit.ours.summary.steps == 4
    assert warnings(caplog) == []


def test_a_step_whose_hooks_raise_is_a_step_that_was_done(tmp_path):
    kinds = tiny_lightning.tree()

    class Raises(kinds.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 3:
                raise RuntimeError("no more")

    ours = kinds.PerfCallback()
    trainer = tiny_lightning.trainer(tmp_path, ours, Raises())
    with pytest.raises(RuntimeError, match="no more"):
        trainer.fit(kinds.Automatic(), tiny_lightning.loader())
    assert (ours.summary.steps, ours.summary.failure) == (3, "RuntimeError: no more")
