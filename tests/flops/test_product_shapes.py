"""Sizes and tiles: the figures of NVIDIA's guide, and of models that people train."""

from rows import each_row

from perf_callbacks.flops.calculator.product_shapes import (
    Misaligned,
    Waves,
    better,
    misaligned,
    waves,
)


@each_row(("size", "instead"), [(10922, 10944), (50257, 50304), (50304, 50304), (4096, 4096), (9, 64)])
def test_a_size_is_rounded_up_to_a_multiple_of_64_where_it_is_none_of_8(size, instead):
    assert better(size) == instead


def test_a_tile_more_than_there_are_multiprocessors_takes_two_waves():
    found = waves(109 * 128, 256, 108)
    assert (found.tiles, found.waves, f"{found.busy:.1%}") == (109, 2, "50.5%")
    assert waves(108 * 128, 256, 108) == Waves(108, 1, 1.0)


def test_the_sizes_with_most_flops_come_first():
    products = (
        ("aten::mm", "[8192, 768] x [768, 50257]", "bfloat16", 300),
        ("aten::bmm", "[96, 1023, 64] x [96, 64, 1023]", "bfloat16", 500),
        ("aten::mm", "[8192, 768] x [768, 2]", "bfloat16", 100),  # the classes are two
        ("aten::mm", "[nested] x [768, 768]", "bfloat16", 100),
    )
    assert misaligned(products) == [Misaligned(1023, 1024, 0.5), Misaligned(50257, 50304, 0.3)]


def test_nothing_is_wrong_with_no_product():
    assert misaligned(()) == []
