"""Train a small Llama to count, with the Hugging Face Trainer, on the device of this machine."""

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from perf_callbacks.transformers import PerfCallback


class Counting(Dataset):
    def __len__(self):
        return 2048

    def __getitem__(self, index):
        ids = (index + torch.arange(128) * (1 + index % 7)) % 4096
        return {"input_ids": ids, "labels": ids}


config = LlamaConfig(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=4,
    num_attention_heads=4,
    pad_token_id=0,
)
arguments = TrainingArguments(
    output_dir="out/llama",
    max_steps=140,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    learning_rate=1e-3,
    logging_steps=10,
    dataloader_pin_memory=torch.cuda.is_available(),
    save_strategy="no",
    report_to="none",
)
model = LlamaForCausalLM(config)
Trainer(model=model, args=arguments, train_dataset=Counting(), callbacks=[PerfCallback()]).train()
