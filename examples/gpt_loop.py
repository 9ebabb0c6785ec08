"""Train a GPT as nanoGPT does: get_batch(), accumulation, autocast, torch.compile and, under torchrun, DDP."""

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure


class Block(nn.TransformerEncoderLayer):
    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return super().forward(x, mask, is_causal=True)


def get_batch():
    ids = torch.randint(256, (4, 65))
    return ids[:, :-1], ids[:, 1:]


blocks = [Block(64, 4, 256, 0.0, "gelu", batch_first=True) for _ in range(2)]
model = nn.Sequential(nn.Embedding(256, 64), *blocks, nn.Linear(64, 256, bias=False))
model = torch.compile(model, backend="aot_eager")  # the default backend needs a C++ compiler on a CPU
if distributed.is_torchelastic_launched():
    distributed.init_process_group("gloo")
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
with measure(model=model, optimizer=optimizer, config=PerfConfig(output_dir="out/gpt_loop", window=10)) as perf:
    for _ in range(40):
        for micro_batch in range(4):
            with perf.data():
                ids, targets = get_batch()
            model.require_backward_grad_sync = micro_batch == 3  # DDP sums gradients only then
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
            (loss / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
