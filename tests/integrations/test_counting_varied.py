"""Steps whose work differs although their batches don't: FLOPs are right, absent, or marked as varying."""

import pytest
import torch
from counted import excluded, known
from torch import nn

from perf_callbacks import PerfConfig
from perf_callbacks.flops import fingerprint
from perf_callbacks.flops.count_schedule import RECOUNTS
from perf_callbacks.loop import measure
from perf_callbacks.report import cards

ROWS, WIDTH = 4, 8
PRODUCT = 2 * ROWS * WIDTH * WIDTH
STEPS = 130


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
    """A plain loop; `step` does forward and backward, and returns how many products these are."""

    def __init__(self, directory, step, *, model=None, steps=STEPS, optimizer=None, batch=None, before=None):
        self.model = Stack() if model is None else model
        self.truth = []
        self.optimizer = (optimizer or (lambda p: torch.optim.SGD(p, lr=1e-3)))(self.model.parameters())
        config = PerfConfig(output_dir=str(directory), gc="off", peak_tflops="1")
        batch = torch.ones(ROWS, WIDTH) if batch is None else batch
        with measure(model=self.model, optimizer=self.optimizer, loader=[batch] * steps, config=config) as perf:
            for number, x in enumerate(perf.loader, start=1):
                if before is not None:
                    before(self.model, number)
                closure = step(self, number, x)
                self.optimizer.step(closure) if closure is not None else self.optimizer.step()
                self.optimizer.zero_grad()
        self.summary = perf.summary

    def train(self, x, **options):
        self.model(x, **options).backward()


def right_or_absent(found, truth):
    return [
        (step, flops, true)
        for step, (flops, true) in enumerate(zip(found, truth, strict=True), 1)
        if flops not in {None, true}
    ]


def judge(directory, fit, least=0.4):
    """Right or absent; of at least so many steps it is known."""
    truth = [number * PRODUCT for number in fit.truth]
    found = known(directory)
    assert right_or_absent(found, truth) == []
    assert sum(flops is not None for flops in found) >= least * len(found)
    assert (
        fit.summary.flops.unknown is None
        or fit.summary.flops.steps in {None, 0}
        or "known for" in fit.summary.flops.unknown
    )


def unfreezing(model, number):
    for place, layer in enumerate(model.layers):
        layer.requires_grad_(place == 2 or number > 330 - 130 * place)


def test_layers_that_are_unfrozen_one_after_the_other(tmp_path):
    def step(fit, number, x):
        fit.truth.append(products(tuple(layer.weight.requires_grad for layer in fit.model.layers)))
        fit.train(x)

    judge(tmp_path, Fit(tmp_path, step, before=unfreezing, steps=400), least=0.5)


def test_layers_that_are_frozen_while_rows_are_logged(tmp_path):
    """As seldom as there is a look at it, so few steps are unknown."""
    model, truth = Stack(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    config = PerfConfig(output_dir=str(tmp_path), gc="off", peak_tflops="1")
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(ROWS, WIDTH)] * 20, config=config) as perf:
        for number, x in enumerate(perf.loader, start=1):
            model.layers[0].requires_grad_(number < 10)
            truth.append(PRODUCT * products((number < 10, True, True)))
            model(x).backward()
            optimizer.step()
            optimizer.zero_grad()
            perf.row()
    found = known(tmp_path)
    assert right_or_absent(found, truth) == []
    assert [number for number, flops in enumerate(found, start=1) if flops is None] == [1, 10]
    assert excluded(tmp_path) == [2, 11]


@pytest.mark.parametrize(("every", "first"), [(2, 0), (3, 1), (5, 0), (16, 1)])
def test_a_lazy_regularizer_of_another_call_between(tmp_path, every, first):
    """A call after the backward is seen, so such steps are counted apart."""

    def step(fit, number, x):
        lazy = number % every == first
        fit.truth.append(products() * (1 + lazy))
        fit.train(x)
        if lazy:
            fit.train(x)

    judge(tmp_path, Fit(tmp_path, step))


@pytest.mark.parametrize(("every", "first"), [(2, 0), (3, 1), (5, 0), (16, 1)])
def test_a_lazy_regularizer_that_nothing_gives_away_is_marked(tmp_path, every, first):
    """The model is called twice in a row: a second call is not seen, and another step's fingerprint or count is."""

    def step(fit, number, x):
        lazy = number % every == first
        fit.truth.append(products() * (1 + lazy))
        loss = fit.model(x)
        (loss + fit.model(x) if lazy else loss).backward()

    fit = Fit(tmp_path, step, steps=320)
    assert "the work of equal batches varies (2.00 times between " in fit.summary.flops.unknown
    assert (fit.summary.flops.model_flops, fit.summary.mfu) == (None, None)


def test_a_critic_that_is_trained_five_times_as_often(tmp_path):
    def step(fit, number, x):
        generator = number % 5 == 0
        fit.truth.append(products() + generator * products(used=2))
        fit.train(x)
        if generator:
            fit.train(x, layers=2)

    judge(tmp_path, Fit(tmp_path, step))


def test_two_losses_in_turn_are_marked(tmp_path):
    def step(fit, number, x):
        used = 2 + number % 2
        fit.truth.append(products(used=used))
        fit.train(x, layers=used)

    fit = Fit(tmp_path, step, steps=12)
    assert "varies (1.50 times between the modules of steps 2 and 3)" in fit.summary.flops.unknown


def test_closures_of_lbfgs(tmp_path):
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

    fit = Fit(tmp_path, step, optimizer=lambda p: Searching(p, lr=1e-3))
    judge(tmp_path, fit, least=0.3)


class Labelled(Stack):
    """The last layer sees some rows only."""

    def __init__(self):
        super().__init__()
        self.draw = torch.Generator().manual_seed(0)
        self.rows = ROWS

    def forward(self, x):
        x = self.layers[1](self.layers[0](x))
        self.rows = int(torch.randint(1, ROWS + 1, (), generator=self.draw))
        return self.layers[2](x[: self.rows]).square().mean()


class Dropping(Stack):
    """Leaves out a layer now and then."""

    def __init__(self):
        super().__init__()
        self.draw = torch.Generator().manual_seed(0)

    def forward(self, x):
        return super().forward(x, layers=2 if torch.rand((), generator=self.draw) < 0.3 else 3)


@pytest.mark.parametrize("kind", [Labelled, Dropping])
def test_work_that_depends_on_data_is_marked(tmp_path, kind):
    def step(fit, number, x):
        fit.train(x)

    fit = Fit(tmp_path, step, model=kind())
    assert "the work of equal batches varies" in fit.summary.flops.unknown
    assert fit.summary.flops.model_flops is None


@pytest.mark.parametrize("kind", [Labelled, Dropping])
def test_work_that_depends_on_data_is_marked_in_ten_steps(tmp_path, kind):
    fit = Fit(tmp_path, lambda fit, number, x: fit.train(x), model=kind(), steps=10)
    assert "times between the modules of steps " in fit.summary.flops.unknown
    assert fit.summary.flops.model_flops is None


def test_an_argument_of_the_call_that_decides_the_work_is_marked(tmp_path):
    fit = Fit(tmp_path, lambda fit, number, x: fit.train(x, layers=1 + (number > 4)), steps=10)
    assert "varies (2.00 times between the modules of steps 4 and 5)" in fit.summary.flops.unknown


class Cropping(Stack):
    """Sees more and more rows."""

    rows = 1

    def forward(self, x):
        return super().forward(x[: self.rows])


def grow(model, number):
    model.rows = 1 if number <= 304 else ROWS


def test_a_crop_that_grows_late_is_marked_within_50_steps(tmp_path):
    fit = Fit(tmp_path, lambda fit, number, x: fit.train(x), model=Cropping(), steps=360, before=grow)
    assert "varies (4.00 times between the modules of steps " in fit.summary.flops.unknown
    assert fit.summary.flops.model_flops is None


class Steered(Stack):
    """Its first layers learn nothing for a while, though their weights require gradients all the time."""

    gradients = False

    def forward(self, x):
        with torch.set_grad_enabled(self.gradients):
            x = self.layers[1](self.layers[0](x))
        return self.layers[2](x).square().mean()


def steer(model, number):
    model.gradients = number > 15


def test_gradients_that_are_enabled_late_are_marked_in_30_steps(tmp_path):
    fit = Fit(tmp_path, lambda fit, number, x: fit.train(x), model=Steered(), steps=30, before=steer)
    assert "varies (1.80 times between the modules of steps 13 and 16)" in fit.summary.flops.unknown
    assert fit.summary.flops.model_flops is None


def test_layers_that_are_trained_in_turns(tmp_path):
    def turn(model, number):
        model.layers[0].requires_grad_(number // 6 % 2 == 0)

    def step(fit, number, x):
        fit.truth.append(products(tuple(layer.weight.requires_grad for layer in fit.model.layers)))
        fit.train(x)

    judge(tmp_path, Fit(tmp_path, step, before=turn, steps=60), least=0.7)


class Experts(Stack):
    """Each row goes to one of three experts, by chance."""

    def forward(self, x):
        chosen = torch.randint(3, (len(x),))
        return sum(layer(x[chosen == place]).square().sum() for place, layer in enumerate(self.layers))


def test_rows_that_go_to_other_experts_are_equal_work(tmp_path):
    fit = Fit(tmp_path, lambda fit, number, x: fit.train(x), model=Experts(), steps=20)
    assert {*known(tmp_path)[2:]} == {2 * PRODUCT}
    assert fit.summary.flops.checked_step == 19


@pytest.mark.parametrize(("steps", "told"), [(3, "counted once,"), (10, "counted once,"), (12, "counted, 100.0%")])
def test_the_card_tells_that_flops_rest_on_one_count(tmp_path, monkeypatch, steps, told):
    monkeypatch.setattr(fingerprint, "compiles", lambda: steps == 3)
    fit = Fit(tmp_path, lambda fit, number, x: fit.train(x), steps=steps)
    assert told in cards.closing(fit.summary).replace("\n    ", " ")


def test_equal_work_is_counted_again_at_few_steps_and_known_of_all(tmp_path):
    def step(fit, number, x):
        fit.truth.append(products())
        fit.train(x)

    fit = Fit(tmp_path, step)
    judge(tmp_path, fit, least=1.0)
    assert excluded(tmp_path) == [2, *[step for step in RECOUNTS if step <= STEPS]]
    assert (fit.summary.flops.unknown, fit.summary.flops.source) == (None, "counted")
    assert fit.summary.flops.steps == fit.summary.included_steps


class Hidden:
    """Nobody finds a tensor in it."""

    def __init__(self, x):
        self.open = lambda: x


class Unpacking(Stack):
    def forward(self, batch):
        return super().forward(batch.open())


def test_a_batch_that_can_not_be_read_has_no_flops(tmp_path):
    model, rows = Unpacking(), [4, 4, 8, 16, 2, 4]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = [Hidden(torch.ones(number, WIDTH)) for number in rows]
    config = PerfConfig(output_dir=str(tmp_path), gc="off", peak_tflops="1")
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for batch in perf.loader:
            model(batch).backward()
            optimizer.step()
    assert known(tmp_path) == [None] * 6
    assert perf.summary.flops.unknown.endswith("the batch is a Hidden whose shapes can't be read")
    assert perf.summary.flops.model_flops is None
