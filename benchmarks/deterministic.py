"""The command line with PyTorch's deterministic algorithms: on a GPU two equal runs are equal to the bit only with them.

python benchmarks/deterministic.py train --resume runs/x        torchrun … benchmarks/deterministic.py train --resume runs/x
"""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from annotated_transformer.cli.main import main

if __name__ == "__main__":
    torch.use_deterministic_algorithms(True, warn_only=True)
    main()
