"""A process on a machine that claims one CUDA device.

Tensors stay on the CPU and say that they are on cuda:0. What PyTorch checks in Python
before it calls the driver, such as the index of a device, is PyTorch's own code; below
it, in place of the driver, are functions that do nothing.
"""

import threading

import torch
from torch.overrides import TorchFunctionMode

GPU = torch.device("cuda", 0)


def on_cpu(value):
    "The argument, with the CPU in place of a CUDA device that exists."
    device = value
    if isinstance(value, str) and value.startswith("cuda"):
        device = torch.device(value)
    if isinstance(device, torch.device) and device.type == "cuda":
        if device.index:
            raise RuntimeError("CUDA error: invalid device ordinal")
        return torch.device("cpu")
    return value


class ClaimsCUDA(TorchFunctionMode):
    "Every tensor says that it is on the GPU, and is computed on the CPU."

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func == torch.Tensor.device.__get__:
            return GPU
        if func == torch.Tensor.is_cuda.__get__:
            return True
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.pin_memory:
            return args[0].clone()
        kwargs = {name: on_cpu(value) for name, value in (kwargs or {}).items()}
        return func(*map(on_cpu, args), **kwargs)


def claim() -> None:
    "Make this process claim a CUDA device, in all its threads."
    cuda, driver = torch.cuda, torch._C
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.is_current_stream_capturing = lambda: False
    cuda.get_device_name = lambda device=None: "stand-in"
    cuda.get_device_capability = lambda device=None: (7, 0)
    driver._cuda_setDevice = lambda index: None
    driver._cuda_exchangeDevice = driver._cuda_maybeExchangeDevice = lambda index: 0
    run = threading.Thread.run

    def claiming(self):
        with ClaimsCUDA():
            run(self)

    threading.Thread.run = claiming
    ClaimsCUDA().__enter__()
