"""Train a small GPT on the source code of torch. This program hides a fault, which a run's verdict names.

python train.py --seconds 24 --out as_it_is
"""

import argparse
import math
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, RandomSampler

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

Batch = dict[str, Tensor]
SNIPPETS, CHARACTERS, TOKENS, VOCABULARY = 512, 256, 64, 1024
BATCH, WIDTH, LAYERS = 16, 128, 2
SETTLED, TIMED, LINES = 12, 24, 8
"""The pace is measured from step `SETTLED` to step `TIMED`. `LINES` is the number of printed lines."""


class Snippets(Dataset[Batch]):
    """Dataset of source code snippets, as tokens."""

    def __init__(self) -> None:
        files = sorted(Path(nn.__file__).parent.rglob("*.py"))
        self._text = "".join([file.read_text(encoding="utf-8") for file in files])
        starts = range(0, len(self._text), max(1, len(self._text) // 50_000))
        pieces = Counter([self._text[start : start + size] for size in range(2, 9) for start in starts])
        tokens = [*sorted({*self._text}), *[piece for piece, _ in pieces.most_common(VOCABULARY)]]
        self._ids = {piece: number for number, piece in enumerate(dict.fromkeys(tokens[:VOCABULARY]))}

    def __len__(self) -> int:
        return SNIPPETS

    def __getitem__(self, index: int) -> Batch:
        start = index * (len(self._text) - CHARACTERS) // SNIPPETS
        ids = self.encode(self._text[start : start + CHARACTERS])
        return {"input_ids": torch.tensor([*ids, *[0] * (TOKENS + 1)][: TOKENS + 1])}

    def encode(self, text: str) -> list[int]:
        ids, parts = self._ids, list(text)
        while True:
            best, place = len(ids), -1
            for number in range(len(parts) - 1):
                rank = ids.get(parts[number] + parts[number + 1], len(ids))
                if rank < best:
                    best, place = rank, number
            if place < 0:
                return [ids.get(part, 0) for part in parts]
            parts[place : place + 2] = [parts[place] + parts[place + 1]]


class GPT(nn.Module):
    """Causal language model that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        inputs, targets = input_ids[:, :-1], input_ids[:, 1:]
        mask = nn.Transformer.generate_square_subsequent_mask(TOKENS)
        inside = self.blocks(self.tokens(inputs) + self.places.weight, mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(inside).flatten(0, 1), targets.flatten())


def train(rank: int, options: argparse.Namespace, store: str) -> None:
    torch.set_num_threads(1)  # the model's operations are small
    torch.manual_seed(rank)
    snippets = Snippets()
    rows: Dataset[Batch] = snippets
    if rank in options.prepared:
        began = time.perf_counter()
        rows = [snippets[index] for index in range(len(snippets))]  # type: ignore[assignment]
        print(f"rank {rank} has tokenized its {SNIPPETS} samples, in {time.perf_counter() - began:.1f} s")
    workers = 0 if rank in options.prepared else options.workers
    sampler = RandomSampler(snippets, replacement=True, num_samples=10**9)
    loader = DataLoader(rows, BATCH, sampler=sampler, num_workers=workers)
    model: nn.Module = GPT()
    if options.ranks > 1:
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=options.ranks)
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    steps, ends = options.steps, [0.0]
    config = PerfConfig(output_dir=options.out, window=20)
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for step, batch in enumerate(perf.loader, 1):
            loss = model(**batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ends.append(time.perf_counter())
            if not options.steps and step in {TIMED, steps}:
                steps = planned(ends, options)
            if steps and rank == 0 and step % max(1, steps // LINES) == 0:
                show(step, steps, loss.item(), perf.row())
            if step == steps:
                break
    if options.ranks > 1:
        distributed.destroy_process_group()


def planned(ends: list[float], options: argparse.Namespace) -> int:
    done, spent = len(ends) - 1, ends[-1] - ends[SETTLED]
    left = math.ceil((options.seconds - spent) * (done - SETTLED) / spent)
    steps = torch.tensor(max(TIMED + 2 * LINES, done + max(0, left)))
    if options.ranks > 1:
        distributed.broadcast(steps, 0)
    return int(steps)


def show(step: int, steps: int, loss: float, row: dict[str, float]) -> None:
    parts = [f"step {step:>4} of {steps}", f"loss {loss:.2f}"]
    if "perf/tokens_per_second" in row:  # of all ranks, as soon as they have exchanged their figures
        parts.append(f"{row['perf/tokens_per_second']:,.0f} tokens/s")
    if "perf/step_time" in row:
        waited = row["perf/data_time"] / row["perf/step_time"]
        parts.append(f"{1000 * row['perf/step_time']:.0f} ms per step, {waited:.0%} of it waiting for data")
    last = step + steps // LINES > steps
    print("  ".join(parts), end="\r" if sys.stdout.isatty() and not last else "\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="out", help="directory of the journal")
    parser.add_argument("--steps", type=int, default=0, help="steps to train (default: for --seconds)")
    parser.add_argument("--seconds", type=float, default=24.0, help="seconds to train")
    parser.add_argument("--ranks", type=int, default=1, help="number of processes")
    parser.add_argument("--workers", type=int, default=0, help="loader workers of each rank that isn't prepared")
    parser.add_argument("--prepared", type=int, nargs="*", default=[], help="ranks that tokenize before the training")
    options = parser.parse_args()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    if options.ranks == 1:
        train(0, options, "")
    else:
        store = Path(tempfile.mkdtemp(dir=options.out)).resolve() / "store"
        spawn(train, (options, store.as_uri()), options.ranks)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
