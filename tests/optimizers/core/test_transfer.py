"""Several tensors in one transfer."""

import torch

from botorch_dp.optimizers.core.transfer import send

CPU = torch.device("cpu")


def tensors():
    generator = torch.Generator(device="cpu").manual_seed(0)
    return [
        torch.randn(2, 3, generator=generator, dtype=torch.float64, device=CPU),
        torch.tensor([0, 2**40 + 1, 7], device=CPU),
        torch.randn(4, generator=generator, dtype=torch.float32, device=CPU),
        torch.empty(0, 3, dtype=torch.float64, device=CPU),
    ]


def test_nothing_is_copied_on_the_cpu():
    public = tensors()
    assert all(a is b for a, b in zip(send(public, CPU), public, strict=True))


def test_shapes_and_dtypes_on_another_device():
    for part, public in zip(
        send(tensors(), torch.device("meta")), tensors(), strict=True
    ):
        assert part.device.type == "meta"
        assert (part.shape, part.dtype) == (public.shape, public.dtype)


def test_values_survive(monkeypatch):
    # The way through one tensor of doubles, with the CPU in place of a device.
    class Elsewhere:
        type = "elsewhere"

    copies = []

    def to(self, target, *args, _to=torch.Tensor.to, **kwargs):
        if isinstance(target, Elsewhere):
            copies.append(self)
            return self.clone()
        return _to(self, target, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", to)
    sent = send(tensors(), Elsewhere())
    assert len(copies) == 1
    for part, public in zip(sent, tensors(), strict=True):
        assert part.dtype == public.dtype
        assert torch.equal(part, public)
