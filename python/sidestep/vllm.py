"""A loader for vLLM: `vllm serve /models/llama --load-format sidestep`.

vLLM finds it by this package's entry point in "vllm.general_plugins", which it calls in each of its processes. The interface is
BaseModelLoader and register_model_loader of vllm.model_executor.model_loader, as of vLLM 0.11.
"""

import os
import re
from typing import Any, Iterator, List, Tuple

from . import load as _load, open as _open
from ._checkpoint import Checkpoint
from ._errors import Error

FORMAT = "sidestep"
# The model and one group of the file's tensors are in GPU memory at a time.
GROUP_BYTES = 1 << 30


def _groups(checkpoint: Checkpoint) -> Iterator[List[str]]:
    """Names in the order of the files, GROUP_BYTES or one tensor at a time."""
    group: List[str] = []
    room = GROUP_BYTES
    for info in checkpoint.tensors():
        if group and info.nbytes > room:
            yield group
            group, room = [], GROUP_BYTES
        group.append(info.name)
        room -= info.nbytes
    if group:
        yield group


def weights(path: Any, device: Any) -> Iterator[Tuple[str, Any]]:
    """Name and torch.Tensor of each tensor of a checkpoint, on the device. Those of a group share an allocation, which goes with
    the last of them. Errors as of sidestep.load."""
    with _open(path) as checkpoint:
        for group in _groups(checkpoint):
            only = [re.sub(r"([\\*?\[\]!])", r"\\\1", name) for name in group]
            yield from _load(checkpoint, device, only=only, framework="torch").items()


def register() -> None:
    """Tells vLLM of load_format "sidestep". May be called again."""
    import torch
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    @register_model_loader(FORMAT)
    class SidestepModelLoader(BaseModelLoader):  # type: ignore[misc]
        """Loads local checkpoints (safetensors, GGUF), each process all tensors: the model takes its parts of them."""

        def download_model(self, model_config: Any) -> None:
            if not os.path.exists(model_config.model):
                raise Error(f"there is no {model_config.model}", "not_found", "vllm",
                            "give the folder of a model that is on this machine")

        def load_weights(self, model: Any, model_config: Any) -> None:
            self.download_model(model_config)
            if getattr(model, "secondary_weights", ()):
                raise Error("the model has weights in a second place", "unsupported", "vllm", "leave --load-format out")
            device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
            loaded = model.load_weights(weights(model_config.model, device))
            # Models that are not quantized say what they took.
            if loaded is None or getattr(model_config, "quantization", None) is not None:
                return
            missing = sorted({name for name, _ in model.named_parameters()} - set(loaded))
            if missing:
                raise Error(f"the checkpoint has no weights for {', '.join(missing[:5])}", "not_found", "vllm")
