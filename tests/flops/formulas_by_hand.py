"""What a step of each model of the zoo costs, from the dimensions in its config alone."""


def llama(hand, config, batch, length):
    """Llama, and Qwen2 with it: what differs between them costs nothing."""
    x = hand.embedding("embed_tokens")
    rotary_table(hand, config, length)
    x = llama_layers(hand, config, x, batch, length)
    hand.linear("lm_head", x, batch * length, config.hidden_size, config.vocab_size)


def rotary_table(hand, config, length):
    """An outer product in older releases of transformers, element-wise since."""
    if config.rotary_is_a_product:
        hand.product(False, False, length, config.hidden_size // config.num_attention_heads // 2, 1)


def llama_layers(hand, config, x, batch, length):
    for layer in range(config.num_hidden_layers):
        with hand.block(tail=1):  # the product that leaves the layer is not needed to differentiate it
            name = f"layers.{layer}."
            x = grouped_query_attention(hand, config, name, normed(hand, name, x), (batch, length)) or x
            x = gated(hand, config, name, normed(hand, name, x), batch * length) or x
    return x


def normed(hand, layer, x):
    """What leaves a norm needs a gradient where the norm is trained, whatever came in."""
    return x or hand.training.trains(layer + "norm")


def grouped_query_attention(hand, config, layer, x, sizes):
    (batch, length), wide, heads = sizes, config.hidden_size, config.num_attention_heads
    rows, head = batch * length, wide // heads
    query = hand.linear(layer + "q_proj", x, rows, wide, heads * head)
    key = hand.linear(layer + "k_proj", x, rows, wide, config.num_key_value_heads * head)
    value = hand.linear(layer + "v_proj", x, rows, wide, config.num_key_value_heads * head)
    mixed = hand.attention(query, key, value, (batch * heads, length, length, head))
    return hand.linear(layer + "o_proj", mixed, rows, heads * head, wide)


def gated(hand, config, layer, x, rows):
    gate = hand.linear(layer + "gate_proj", x, rows, config.hidden_size, config.intermediate_size)
    up = hand.linear(layer + "up_proj", x, rows, config.hidden_size, config.intermediate_size)
    return hand.linear(layer + "down_proj", gate or up, rows, config.intermediate_size, config.hidden_size)


def mixtral(hand, config, batch, length):
    rows, wide = batch * length, config.hidden_size
    x = hand.embedding("embed_tokens")
    rotary_table(hand, config, length)
    for layer in range(config.num_hidden_layers):
        with hand.block():  # the routing weight multiplies what the last expert gives
            name = f"layers.{layer}."
            x = grouped_query_attention(hand, config, name, normed(hand, name, x), (batch, length)) or x
            x = normed(hand, name, x)
            hand.linear(name + "gate", x, rows, wide, config.num_local_experts)
            experts(hand, config, name + "experts", x, rows)
    hand.linear("lm_head", x, rows, wide, config.vocab_size)


def experts(hand, config, name, x, rows):
    """Every token visits so many experts, whoever multiplies: rows x experts per token, never x all experts."""
    visits, trained = rows * config.num_experts_per_tok, hand.training.trains(name)
    wide, between = config.hidden_size, config.intermediate_size
    one_by_one = config.experts == "eager"
    through = hand.product(x, trained, visits, wide, 2 * between, kept=one_by_one)
    hand.product(through, trained, visits, between, wide, kept=one_by_one)


def gpt2(hand, config, batch, length):
    rows, wide, heads = batch * length, config.n_embd, config.n_head
    x = hand.embedding("wte")
    for layer in range(config.n_layer):
        name = f"h.{layer}."
        with hand.block(tail=1):
            joint = hand.linear(name + "attn.c_attn", normed(hand, name, x), rows, wide, 3 * wide)
            mixed = hand.attention(joint, joint, joint, (batch * heads, length, length, wide // heads))
            x = hand.linear(name + "attn.c_proj", mixed, rows, wide, wide) or x
            between = hand.linear(name + "mlp.c_fc", normed(hand, name, x), rows, wide, config.n_inner)
            x = hand.linear(name + "mlp.c_proj", between, rows, config.n_inner, wide) or x
    hand.linear("lm_head", x, rows, wide, config.vocab_size)


def bert(hand, config, batch, length):
    rows, wide = batch * length, config.hidden_size
    x = bert_layers(hand, config, "bert.", batch, length)
    x = hand.linear("cls.predictions.transform.dense", x, rows, wide, wide)
    hand.linear("cls.predictions.decoder", x, rows, wide, config.vocab_size)


def bert_layers(hand, config, tower, batch, length):
    x = hand.embedding(tower + "embeddings")
    for layer in range(config.num_hidden_layers):
        name = f"{tower}layer.{layer}."
        with hand.block():  # a norm stands last
            x = self_attention(hand, config, name, x, (batch, length), names=("query", "key", "value")) or x
            x = perceptron(hand, config, name, x, batch * length) or x
    return x


def self_attention(hand, config, layer, x, sizes, *, names):
    (batch, length), wide, heads = sizes, config.hidden_size, config.num_attention_heads
    rows = batch * length
    query, key, value = [hand.linear(layer + name, x, rows, wide, wide) for name in names]
    mixed = hand.attention(query, key, value, (batch * heads, length, length, wide // heads))
    return hand.linear(layer + "dense", mixed, rows, wide, wide)


def perceptron(hand, config, layer, x, rows):
    between = hand.linear(layer + "dense", x, rows, config.hidden_size, config.intermediate_size)
    return hand.linear(layer + "dense", between, rows, config.intermediate_size, config.hidden_size)


def vit(hand, config, batch):
    x = vision(hand, config, "vit.", batch, asked=hand.inputs_need)
    hand.linear("classifier", x, batch, config.hidden_size, config.num_labels)


def vision(hand, config, tower, batch, *, asked=False):
    """Patches by a convolution on data, which needs no gradient for its input, then layers with one more token."""
    patches = (config.image_size // config.patch_size) ** 2
    per_output = config.num_channels * config.patch_size**2
    hand.convolution(tower + "embeddings", False, batch * patches, config.hidden_size, per_output)
    x = hand.training.trains(tower + "embeddings") or asked
    for layer in range(config.num_hidden_layers):
        name = f"{tower}layer.{layer}."
        with hand.block(tail=1):
            before, sizes = normed(hand, name, x), (batch, patches + 1)
            x = self_attention(hand, config, name, before, sizes, names=("q_proj", "k_proj", "v_proj")) or x
            x = perceptron(hand, config, name, normed(hand, name, x), batch * (patches + 1)) or x
    return x


def t5(hand, config, batch, source, target):
    states = t5_stack(hand, config, "encoder.", (batch, source), None)
    x = t5_stack(hand, config, "decoder.", (batch, target), (states, source))
    hand.linear("lm_head", x, batch * target, config.d_model, config.vocab_size)


def t5_stack(hand, config, stack, sizes, crossed):
    """A position bias that needs a gradient keeps the fused kernel away.

    It does where it is learned, where it left a reentrant checkpoint, and, being zeros, under any checkpointing.
    """
    (batch, length), x = sizes, hand.embedding("shared")
    learned = hand.training.trains("relative_attention_bias")
    for layer in range(config.num_layers):
        name = f"{stack}block.{layer}."
        with hand.block(tail=1):
            fused = hand.fused and not learned and not (layer and hand.checkpointing == "reentrant")
            x = t5_attention(hand, config, name + "layer.0.", x, sizes, fused=fused)
            if crossed is not None:
                fused = hand.fused and hand.checkpointing == "none"
                x = t5_attention(hand, config, name + "layer.1.", x, sizes, over=crossed, fused=fused)
            between = hand.linear(name + "wi", normed(hand, name, x), batch * length, config.d_model, config.d_ff)
            x = hand.linear(name + "wo", between, batch * length, config.d_ff, config.d_model) or x
    return x


def t5_attention(hand, config, name, x, sizes, *, fused, over=None):
    """Over itself, or over the states of the encoder: whether they need a gradient, and how many they are."""
    (batch, length), before = sizes, normed(hand, name, x)
    states, keys = over or (before, length)
    wide, inner = config.d_model, config.num_heads * config.d_kv
    query = hand.linear(name + "q", before, batch * length, wide, inner)
    key = hand.linear(name + "k", states, batch * keys, wide, inner)
    value = hand.linear(name + "v", states, batch * keys, wide, inner)
    mixed = hand.attention(query, key, value, (batch * config.num_heads, length, keys, config.d_kv), fused=fused)
    return hand.linear(name + "o", mixed, batch * length, inner, wide) or x


def mamba(hand, config, batch, length):
    rows, wide, inner, states = batch * length, config.hidden_size, config.intermediate_size, config.state_size
    step = config.time_step_rank
    x = hand.embedding("embeddings")
    for layer in range(config.num_hidden_layers):
        name = f"layers.{layer}.mixer."
        with hand.block(tail=1):
            x = hand.linear(name + "in_proj", normed(hand, name, x), rows, wide, 2 * inner) or x
            positions = batch * (length + config.conv_kernel - 1)
            x = hand.convolution(name + "conv1d", x, positions, inner, config.conv_kernel)
            folded = hand.training.trains(name)  # torch batches these two where the weights need no gradient
            x = hand.linear(name + "x_proj", x, rows, inner, step + 2 * states, kept=folded)
            hand.product(x, hand.training.trains(name + "dt_proj"), rows, step, inner, kept=folded)
            for _ in range(length):
                hand.product(x, x, batch, inner, states)
            x = hand.linear(name + "out_proj", x, rows, inner, wide)
    hand.linear("lm_head", x, rows, wide, config.vocab_size)


def mamba2(hand, config, batch, length):
    rows, wide, inner = batch * length, config.hidden_size, config.expand * config.hidden_size
    mixed = inner + 2 * config.n_groups * config.state_size
    x = hand.embedding("embeddings")
    for layer in range(config.num_hidden_layers):
        name = f"layers.{layer}.mixer."
        with hand.block(tail=1):
            x = hand.linear(name + "in_proj", normed(hand, name, x), rows, wide, inner + mixed + config.num_heads) or x
            positions = batch * (length + config.conv_kernel - 1)
            x = hand.convolution(name + "conv1d", x, positions, mixed, config.conv_kernel)
            chunks(hand, config, x, batch * config.num_heads, length)
            x = hand.linear(name + "out_proj", x, rows, inner, wide)
    hand.linear("lm_head", x, rows, wide, config.vocab_size)


def chunks(hand, config, x, heads, length):
    """The state space dual: scores within a chunk, states of chunks, states between them, and back to positions."""
    chunk, head, states = config.chunk_size, config.head_dim, config.state_size
    count = -(-length // chunk)
    hand.product(x, x, heads * count, chunk, chunk, states)
    hand.product(x, x, heads * count, chunk, chunk, head)
    hand.product(x, x, heads * count, chunk, states, head)
    hand.product(x, x, heads, count + 1, count + 1, states, head)
    hand.product(x, x, heads * count, chunk, states, head)
