"""A function whose backward calls a function of the test: to sleep on its clock, or to raise."""

import torch


class SlowBackward(torch.autograd.Function):
    """Pass values on, and call `sleep("backward")` when the gradient comes back."""

    @staticmethod
    def forward(ctx, values, sleep):
        ctx.sleep = sleep
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.sleep("backward")
        return gradient, None
