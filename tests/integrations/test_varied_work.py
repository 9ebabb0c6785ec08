"""Steps whose work differs although their batches don't: FLOPs are right, absent, or marked as varying."""

import pytest
import torch
from counted import excluded, fit, known
from rows import each_row
from torch import nn

from perf_callbacks.flops import fingerprint
from perf_callbacks.flops.count_schedule import RECOUNTS

ROWS, WIDTH = 4, 8
PRODUCT = 2 * ROWS * WIDTH * WIDTH
BATCH = torch.ones(ROWS, WIDTH)
STEPS = 130
PERIODS = [(2, 0), (3, 1), (5, 0), (16, 1)]
"""Every so many steps, the first of them at this place."""


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):
    """Whatever other tests have compiled in this process."""
    monkeypatch.setattr(fingerprint, "compiles", lambda: False)


class Stack(nn.Module):
    """Layers of one width; the first needs no gradient of its input, so a step is 3n - 1 products."""

    def __init__(self, layers=3):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(layers)])

    def forward(self, x, layers=None):
        for layer in list(self.layers)[:layers]:
            x = layer(x)
        return x.square().mean()


def products(trained=(True, True, True), used=3):
    """Products of a step: forward, gradients of the weights that are trained, gradients of inputs behind a weight."""
    trained = trained[:used]
    first = trained.index(True)
    return used + sum(trained) + used - first - 1


class Fit:
    """A fit; `step` does forward and backward. It appends the products of the step to `truth`."""

    def __init__(self, directory, step, *, model=None, steps=STEPS, optimizer=None, batch=BATCH, rows=None):
        self.directory, self.truth = directory, []
        self.model = Stack() if model is None else model
        optimizer = (optimizer or (lambda p: torch.optim.SGD(p, lr=1e-3)))(self.model.parameters())
        self.optimizer = optimizer
        do = {"optimizer": optimizer, "rows": rows, "peak_tflops": "1"}
        perf = fit(directory, self.model, [batch] * steps, lambda number, x: step(self, number, x), **do)
        self.flops, self.summary = perf.summary.flops, perf.summary

    def train(self, x, **options):
        self.model(x, **options).backward()

    def judge(self, least=0.4):
        """Right or absent; of at least so many steps it is known."""
        found = known(self.directory)
        steps = enumerate(zip(found, self.truth, strict=True), 1)
        assert [(step, a, b) for step, (a, b) in steps if a not in {None, b * PRODUCT}] == []
        assert sum(flops is not None for flops in found) >= least * len(found)
        assert self.flops.unknown is None or self.flops.steps in {None, 0} or "known for" in self.flops.unknown


def freezing(trains, **options):
    """A step that first sets which layers are trained."""

    def step(fit, number, x):
        for place, layer in enumerate(fit.model.layers):
            layer.requires_grad_(trains(place, number))
        fit.truth.append(products(tuple(trains(place, number) for place in range(3))))
        fit.train(x)

    return step


def test_layers_that_are_unfrozen_in_turn_are_right_or_absent(tmp_path):
    step = freezing(lambda place, number: place == 2 or number > 330 - 130 * place)
    Fit(tmp_path, step, steps=400).judge(least=0.5)


def test_layers_that_are_trained_in_turns_are_right_or_absent(tmp_path):
    step = freezing(lambda place, number: place > 0 or number // 6 % 2 == 0)
    Fit(tmp_path, step, steps=60).judge(least=0.7)


def test_layers_frozen_while_rows_are_logged_cost_a_step(tmp_path):
    """As seldom as there is a look at it, so few steps are unknown."""
    Fit(tmp_path, freezing(lambda place, number: place > 0 or number < 10), steps=20, rows=[]).judge()
    assert [number for number, flops in enumerate(known(tmp_path), start=1) if flops is None] == [1, 10]
    assert excluded(tmp_path) == [2, 11]


@each_row(("every", "first"), PERIODS)
def test_a_regularizer_after_the_backward_is_counted_apart(tmp_path, every, first):
    def step(fit, number, x):
        lazy = number % every == first
        fit.truth.append(products() * (1 + lazy))
        fit.train(x)
        if lazy:
            fit.train(x)

    Fit(tmp_path / str(every), step).judge()


@each_row(("every", "first"), PERIODS)
def test_a_regularizer_that_nothing_gives_away_is_marked(tmp_path, every, first):
    """The model is called twice in a row: a second call is not seen, and another step's fingerprint or count is."""

    def step(fit, number, x):
        loss = fit.model(x)
        (loss + fit.model(x) if number % every == first else loss).backward()

    fit = Fit(tmp_path / str(every), step, steps=320)
    assert "the work of equal batches varies (2.00 times between " in fit.flops.unknown
    assert (fit.flops.model_flops, fit.summary.mfu) == (None, None)


def test_a_generator_trained_less_than_its_critic_is_right_or_absent(tmp_path):
    def step(fit, number, x):
        generator = number % 5 == 0
        fit.truth.append(products() + generator * products(used=2))
        fit.train(x)
        if generator:
            fit.train(x, layers=2)

    Fit(tmp_path, step).judge()


def test_closures_of_an_optimizer_are_right_or_absent(tmp_path):
    def step(fit, number, x):
        fit.truth.append(0)

        def closure():
            fit.truth[-1] += products()
            fit.optimizer.zero_grad()
            loss = fit.model(x)
            loss.backward()
            return loss

        return closure

    draw = iter([2, 3, 2, 2, 4] * STEPS)

    class Searching(torch.optim.SGD):
        """Evaluates its closure as often as it likes."""

        def step(self, closure):
            for _ in range(next(draw)):
                closure()

    Fit(tmp_path, step, optimizer=lambda p: Searching(p, lr=1e-3)).judge(least=0.3)


class Random(Stack):
    """Draws what it does with a batch."""

    def __init__(self):
        super().__init__()
        self.draw = torch.Generator().manual_seed(0)


class Labelled(Random):
    """The last layer sees some rows only."""

    def forward(self, x):
        x = self.layers[1](self.layers[0](x))
        return self.layers[2](x[: int(torch.randint(1, ROWS + 1, (), generator=self.draw))]).square().mean()


class Dropping(Random):
    """Leaves out a layer now and then."""

    def forward(self, x):
        return super().forward(x, layers=2 if torch.rand((), generator=self.draw) < 0.3 else 3)


class Experts(Stack):
    """Each row goes to one of three experts, by chance."""

    def forward(self, x):
        chosen = torch.randint(3, (len(x),))
        return sum(layer(x[chosen == place]).square().sum() for place, layer in enumerate(self.layers))


@each_row("steps", [10, STEPS])
@each_row("kind", [Labelled, Dropping])
def test_work_that_depends_on_data_is_marked(tmp_path, kind, steps):
    fit = Fit(tmp_path / f"{kind.__name__}{steps}", lambda fit, number, x: fit.train(x), model=kind(), steps=steps)
    assert "the work of equal batches varies" in fit.flops.unknown
    assert fit.flops.model_flops is None


def test_rows_that_go_to_other_experts_are_equal_work(tmp_path):
    fit = Fit(tmp_path, lambda fit, number, x: fit.train(x), model=Experts(), steps=20)
    assert {*known(tmp_path)[2:]} == {2 * PRODUCT}
    assert fit.flops.checked_step == 19


class Steered(Stack):
    """Its first layers learn nothing for a while, though their weights require gradients all the time."""

    def forward(self, x):
        with torch.set_grad_enabled(self.gradients):
            x = self.layers[1](self.layers[0](x))
        return self.layers[2](x).square().mean()


def argument(fit, number, x):
    fit.train(x, layers=1 + (number > 4))


def crop(fit, number, x):
    fit.train(x[: 1 if number <= 304 else ROWS])


def steer(fit, number, x):
    fit.model.gradients = number > 15
    fit.train(x)


@each_row(
    ("kind", "step", "steps", "words"),
    [
        (Stack, argument, 10, "varies (2.00 times between the modules of steps 4 and 5)"),
        (Stack, crop, 360, "varies (4.00 times between the modules of steps "),
        (Steered, steer, 30, "varies (1.80 times between the modules of steps 13 and 16)"),
    ],
)
def test_work_that_changes_in_a_later_step_is_marked_soon(tmp_path, kind, step, steps, words):
    fit = Fit(tmp_path / step.__name__, step, model=kind(), steps=steps)
    assert words in fit.flops.unknown
    assert fit.flops.model_flops is None


def test_equal_work_is_counted_again_at_few_steps_and_known_of_all(tmp_path):
    def step(fit, number, x):
        fit.truth.append(products())
        fit.train(x)

    fit = Fit(tmp_path, step)
    fit.judge(least=1.0)
    assert excluded(tmp_path) == [2, *[step for step in RECOUNTS if step <= STEPS]]
    assert (fit.flops.unknown, fit.flops.source) == (None, "counted")
    assert fit.flops.steps == fit.summary.included_steps
