"""What a step of each model of our own costs, layer by layer; two of them hold models of transformers."""

from flops.formulas_by_hand import bert_layers, llama_layers, rotary_table, vision


def stack(hand, batch, length, wide, blocks):
    """Pairs of blocks, each pair in a checkpoint of its own where checkpoints nest."""
    x = hand.linear("first", False, batch * length, wide, wide)  # of data
    for _ in range(blocks // 2):
        with hand.outer():
            for _ in range(2):
                with hand.block(tail=1):
                    joint = hand.linear("joint", x, batch * length, wide, 3 * wide)
                    mixed = hand.attention(joint, joint, joint, (batch * 2, length, length, wide // 2))
                    x = hand.linear("out", mixed, batch * length, wide, wide)
    hand.linear("head", x, batch * length, wide, 1)


def convolutions(hand, batch, side):
    """Each output (each input where transposed) times the channels of its group times the kernel."""
    half = side // 2
    x = hand.convolution("plain", False, batch * side**2, 8, 3 * 9)
    with hand.block():  # a relu stands last, and its output is needed
        x = hand.convolution("grouped", x, batch * half**2, 16, 8 // 4 * 9) or x
        x = hand.convolution("depthwise", x, batch * half**2, 16, 1 * 25)
        x = hand.convolution("transposed", x, batch * half**2, 16, 8 // 2 * 16)
    line = side**2 - 4
    x = hand.convolution("line", x, batch * line, 6, 8 // 2 * 3)
    depth, height, width = 6 - 1, 6 - 1, line // 6 - 1
    x = hand.convolution("volume", x, batch * depth * height * width, 2, 1 * 8)
    hand.linear("head", x, batch, 2, 4)


def recurrent(hand, batch, length, *, wide, hidden, vocabulary):
    """Four gates, each of what comes in and of what was; the fused layer computes every gradient."""
    x = hand.embedding("embedding")
    for inputs in (wide, hidden):
        hand.product(x, True, batch * length, 4 * hidden, inputs + hidden, gradients=2)
    hand.linear("head", True, batch * length, hidden, vocabulary)


def prefix(hand, seeing, reading, batch, length):
    """Behind the frozen tower nothing needs a gradient; before the frozen language model everything does."""
    patches = (seeing.image_size // seeing.patch_size) ** 2 + 1
    x = vision(hand, seeing, "vision.", batch)
    x = hand.linear("projection", x, batch * patches, seeing.hidden_size, reading.hidden_size)
    rotary_table(hand, reading, patches + length)
    x = llama_layers(hand, reading, x, batch, patches + length)
    hand.linear("language.lm_head", x, batch * (patches + length), reading.hidden_size, reading.vocab_size)


def towers(hand, seeing, reading, batch, length):
    """Of the products of all with all, the frozen side gets no gradient."""
    images = hand.linear("image", vision(hand, seeing, "vision.", batch), batch, seeing.hidden_size, 16)
    x = bert_layers(hand, reading, "text.", batch, length)
    captions = hand.linear("caption", x, batch, reading.hidden_size, 16)
    hand.product(captions, images, batch, batch, 16)
