"""Models of torch alone and of transformers, tiny, random, each with a batch of its own."""

import inspect
from importlib import import_module
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

BATCH, LENGTH, TARGET, VOCABULARY, WIDE = 2, 16, 8, 64, 32


class Stack(nn.Module):
    """Blocks of two linear layers and an attention between them, checkpointed singly, or in pairs as well."""

    def __init__(self, attention, *, blocks=4, wide=WIDE):
        super().__init__()
        self.blocks = nn.ModuleList(Mixer(attention, wide) for _ in range(blocks))
        self.head = nn.Linear(wide, 1)
        self.first = nn.Linear(wide, wide)
        self.checkpointing = None
        self.nested = False

    def forward(self, x):
        x = self.first(x)
        pairs = [self.blocks[at : at + 2] for at in range(0, len(self.blocks), 2)]
        for pair in pairs:
            x = self.checkpointing(self.through, pair, x) if self.nested else self.through(pair, x)
        return SimpleNamespace(loss=self.head(x).square().mean())

    def through(self, blocks, x):
        for block in blocks:
            x = self.checkpointing(block, x) if self.checkpointing else block(x)
        return x


class Mixer(nn.Module):
    def __init__(self, attention, wide):
        super().__init__()
        self.joint = nn.Linear(wide, 3 * wide)
        self.out = nn.Linear(wide, wide)
        self.eager = attention == "eager"

    def forward(self, x):
        query, key, value = [part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.joint(x).chunk(3, -1)]
        if self.eager:
            mixed = (query @ key.mT).softmax(-1) @ value
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Convolutions(nn.Module):
    """Plain, grouped and strided, depthwise, transposed and grouped, and a linear head."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Conv2d(3, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=4)
        self.depthwise = nn.Conv2d(16, 16, 5, padding=2, groups=16, bias=False)
        self.transposed = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1, groups=2)
        self.line = nn.Conv1d(8, 6, 3, dilation=2, groups=2)
        self.volume = nn.Conv3d(1, 2, 2)
        self.head = nn.Linear(2, 4)
        self.checkpointing = None

    def forward(self, x):
        x = self.plain(x).relu()
        x = self.checkpointing(self.middle, x) if self.checkpointing else self.middle(x)
        x = self.line(x.flatten(2)).unflatten(-1, (6, -1)).unsqueeze(1)
        return SimpleNamespace(loss=self.head(self.volume(x).mean((2, 3, 4))).square().mean())

    def middle(self, x):
        return self.transposed(self.depthwise(self.grouped(x).relu())).relu()


class Recurrent(nn.Module):
    """An embedding, an LSTM of two layers, a head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDE)
        self.lstm = nn.LSTM(WIDE, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, VOCABULARY)

    def forward(self, ids):
        return SimpleNamespace(loss=self.head(self.lstm(self.embedding(ids))[0]).square().mean())


class Prefix(nn.Module):
    """What a vision tower sees, projected, stands before what a language model reads."""

    def __init__(self, vision, language):
        super().__init__()
        self.vision, self.language = vision, language
        self.projection = nn.Linear(vision.config.hidden_size, language.config.hidden_size)

    def forward(self, pixel_values, input_ids):
        seen = self.projection(self.vision(pixel_values).last_hidden_state)
        read = self.language.get_input_embeddings()(input_ids)
        logits = self.language(inputs_embeds=torch.cat([seen, read], 1)).logits
        return SimpleNamespace(loss=logits.square().mean())


class Towers(nn.Module):
    """Images and texts, each through a tower and a projection, compared all with all."""

    def __init__(self, vision, text):
        super().__init__()
        self.vision, self.text = vision, text
        self.image = nn.Linear(vision.config.hidden_size, 16, bias=False)
        self.caption = nn.Linear(text.config.hidden_size, 16, bias=False)

    def forward(self, pixel_values, input_ids):
        images = self.image(self.vision(pixel_values).last_hidden_state[:, 0])
        captions = self.caption(self.text(input_ids).last_hidden_state[:, 0])
        return SimpleNamespace(loss=(captions @ images.T).softmax(-1).diagonal().log().neg().mean())


DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDE,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "use_cache": False,
}
MIXTRAL = DECODER | {"num_local_experts": 4, "num_experts_per_tok": 2}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": WIDE, "n_inner": 48, "n_layer": 2, "n_head": 4, "n_positions": 64}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
ENCODER = {"hidden_size": WIDE, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
ENCODER |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT = ENCODER | {"vocab_size": VOCABULARY, "max_position_embeddings": 64}
VIT = ENCODER | {"image_size": 12, "patch_size": 4, "num_channels": 3, "num_labels": 5}
T5 = {"vocab_size": VOCABULARY, "d_model": WIDE, "d_ff": 48, "d_kv": 8, "num_heads": 4, "num_layers": 2}
T5 |= {"dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0, "use_cache": False}
MAMBA = {"vocab_size": VOCABULARY, "hidden_size": WIDE, "state_size": 8, "num_hidden_layers": 2, "expand": 2}
MAMBA |= {"conv_kernel": 4, "time_step_rank": 3, "use_cache": False}
MAMBA2 = {"vocab_size": VOCABULARY, "hidden_size": WIDE, "state_size": 8, "num_hidden_layers": 2, "expand": 2}
MAMBA2 |= {"conv_kernel": 4, "num_heads": 4, "head_dim": 16, "n_groups": 2, "chunk_size": 8, "use_cache": False}


def hugging(name, config, **options):
    """A model of transformers by the name of its class."""
    import transformers

    kind = getattr(transformers, name)
    return kind(kind.config_class(**config, **options))


def rotary_is_a_product(family):
    """Whether the release of transformers at hand writes the rotary table of these models as an outer product."""
    module = import_module(f"transformers.models.{family.lower()}.modeling_{family.lower()}")
    return " @ " in inspect.getsource(getattr(module, f"{family}RotaryEmbedding").forward)


def tokens(length=LENGTH):
    return torch.randint(1, VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(length))


def pixels():
    return torch.randn(BATCH, 3, VIT["image_size"], VIT["image_size"], generator=torch.Generator().manual_seed(0))
