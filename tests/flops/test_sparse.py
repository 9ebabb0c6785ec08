"""Sparse matrices: what is stored is multiplied, and nothing else."""

from functools import partial

import pytest
import torch
from rows import each_row
from torch import nn

from perf_callbacks.flops.counting.counter import FlopCounter

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR|BSC) tensor support is in beta state"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
]
M, K, N = 8, 6, 5
STORED = [(0, 0), (0, 3), (1, 2), (3, 3), (4, 1), (5, 5), (6, 0), (6, 4), (7, 2)]
TWOS = {(row // 2, column // 2) for row, column in STORED}
NUMBER = {"coo": len(STORED), "csr": len(STORED), "csc": len(STORED), "bsr": 4 * len(TWOS)}


def matrix(layout, *, transposed=False):
    full = torch.zeros(M, K)
    for number, place in enumerate(STORED, 1):
        full[place] = number
    full = full.T.contiguous() if transposed else full
    options = {"blocksize": (2, 2)} if layout == "bsr" else {}
    return full.to_sparse(layout=getattr(torch, f"sparse_{layout}"), **options)


def dense(*sizes):
    return torch.randn(*sizes, requires_grad=True)


def count(run):
    with FlopCounter() as counter:
        out = run()
        if out.requires_grad:
            (out if out.layout is torch.strided else out.to_dense()).sum().backward()
    assert (dict(counter.errors), dict(counter.observed.unknown)) == ({}, {})
    return counter.work().by_phase


PRODUCTS = {
    "by a matrix": (lambda a: a @ dense(K, N), N),
    "by a vector": (lambda a: a @ dense(K), 1),
    "a matrix by it": (lambda a: dense(N, M) @ a, N),
    "a linear layer": (lambda a: nn.functional.linear(dense(N, K), a), N),
    "sparse.mm": (lambda a: torch.sparse.mm(a, dense(K, N)), N),
    "sparse.addmm": (lambda a: torch.sparse.addmm(dense(M, N), a, dense(K, N)), N),
    "addmm": (lambda a: torch.addmm(dense(M, N), a, dense(K, N)), N),
}


@each_row("layout", ["coo", "csr", "csc"])
@each_row("name", PRODUCTS)
def test_each_stored_value_meets_each_column_forward_and_backward(name, layout):
    run, columns = PRODUCTS[name]
    stored = matrix(layout)
    product = 2 * NUMBER[layout] * columns
    assert count(partial(run, stored)) == {"forward": product, "backward": product}


@each_row("name", ["by a matrix", "by a vector", "sparse.mm", "sparse.addmm", "addmm"])
def test_blocks_are_multiplied_with_their_zeros(name):
    run, columns = PRODUCTS[name]
    with torch.no_grad():  # on a CPU it has no gradient
        assert count(partial(run, matrix("bsr"))) == {"forward": 2 * NUMBER["bsr"] * columns}


def test_values_that_were_not_added_up_are_multiplied_singly():
    places = torch.tensor([[0, 0, 1], [2, 2, 3]])
    assert count(lambda: torch.sparse_coo_tensor(places, torch.ones(3), (M, K)) @ dense(K, N))["forward"] == 2 * 3 * N


@each_row("layout", ["coo", "csr", "csc"])
@each_row("multiply", [torch.matmul, torch.sparse.mm])
def test_of_two_sparse_matrices_the_values_that_meet_are_multiplied(multiply, layout):
    pairs = sum(column == other for _, column in STORED for _, other in STORED)
    a, b = matrix(layout), matrix(layout, transposed=True)
    assert count(lambda: multiply(a, b)) == {"forward": 2 * pairs}


def test_gradients_of_stored_values_are_as_many_products():
    a, b = dense(M, K), dense(K, N)
    stored = torch.zeros(M, N).index_put((torch.tensor([0, 1, 7]), torch.tensor([2, 2, 4])), torch.ones(3))
    assert count(lambda: torch.sparse.sampled_addmm(stored.to_sparse_csr(), a, b, beta=0.0))["forward"] == 2 * 3 * K
    weights = matrix("csr").requires_grad_()
    product = 2 * len(STORED) * N
    assert count(lambda: torch.sparse.mm(weights, dense(K, N))) == {"forward": product, "backward": 2 * product}


def test_a_mean_over_neighbours_costs_as_much_as_their_sum():
    stored = matrix("csr")
    product = 2 * len(STORED) * N
    assert count(lambda: torch.sparse.mm(stored, dense(K, N), "mean"))["forward"] == product


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_sparse_weight_is_covered_once_it_is_multiplied(layout):
    model = nn.Module()
    model.weight = nn.Parameter(matrix(layout), requires_grad=False)
    model.forward = lambda x: torch.sparse.mm(model.weight, x)
    with FlopCounter() as counter:
        model(dense(K, N)).sum().backward()
    assert counter.weights.multiplied_elements() == len(STORED)
    assert counter.weights.coverage() == 1.0
    assert not counter.errors


def test_batches_in_coordinates_count_each():
    stored = torch.stack([matrix("coo").to_dense()] * 2).to_sparse()
    assert count(lambda: torch.bmm(stored, dense(2, K, N)))["forward"] == 2 * 2 * len(STORED) * N
