"""The program of the demo does real work."""

import argparse

import pytest
import torch

from perf_callbacks.launch.demo import train


@pytest.fixture(scope="module")
def snippets():
    return train.Snippets()


def test_tokens_are_those_of_the_text(snippets):
    pieces = {number: piece for piece, number in snippets._ids.items()}
    text = "    def forward(self, input: Tensor) -> Tensor:\n"
    ids = snippets.encode(text)
    assert "".join([pieces[one] for one in ids]) == text
    assert len(ids) < len(text) / 2


def test_a_sample_fills_its_length(snippets):
    found = snippets[train.SNIPPETS - 1]["input_ids"]
    assert found.shape == (train.TOKENS + 1,)
    assert 0 <= int(found.min()) <= int(found.max()) < train.VOCABULARY


def test_the_model_learns(snippets):
    torch.manual_seed(0)
    model, batch = train.GPT(), torch.stack([snippets[index]["input_ids"] for index in range(2)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


def test_the_settled_steps_take_the_wanted_seconds_also_if_they_get_faster():
    options = argparse.Namespace(seconds=25.0, ranks=1)
    ends = [10.0] * (train.SETTLED + 1) + [10.0 + 0.25 * step for step in range(1, train.TIMED - train.SETTLED + 1)]
    assert train.planned(ends, options) == train.SETTLED + 100
    ends += [13.0 + 0.2 * step for step in range(1, train.SETTLED + 100 - train.TIMED + 1)]
    assert train.planned(ends, options) == len(ends) - 1 + 22  # 4.4 seconds are left
    ends += [30.6 + 0.2 * step for step in range(1, 23)]
    assert train.planned(ends, options) == len(ends) - 1


def test_a_line_of_steps_without_figures_has_the_loss(capsys):
    train.show(10, 80, 4.25, {})
    train.show(80, 80, 3.5, {"perf/step_time": 0.1, "perf/data_time": 0.05, "perf/tokens_per_second": 10400.0})
    assert capsys.readouterr().out.splitlines() == [
        "step   10 of 80  loss 4.25",
        "step   80 of 80  loss 3.50  10,400 tokens/s  100 ms per step, 50% of it waiting for data",
    ]
