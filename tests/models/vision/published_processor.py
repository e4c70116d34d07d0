"""transformers' image processors of Llama 4 and LFM2-VL, without torchvision, which PyPI has for GPUs only.

The processors' modules import it, and call three functions of it: what pads, what normalizes and what resizes. They
stand here, as torchvision writes them with torch; all the rest is transformers' own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

NAMES = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2", "torchvision.transforms.v2.functional")


LLAMA4 = "llama4.image_processing_llama4.Llama4ImageProcessor"
LFM2_VL = "lfm2_vl.image_processing_lfm2_vl.Lfm2VlImageProcessor"


def image_processor(name: str, *, pillow: bool, **settings: Any) -> Any:
    """A processor with these settings. `pillow`: it resizes with Pillow, else as with torchvision."""
    import torch  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415
    from transformers.image_processing_backends import TorchvisionBackend  # noqa: PLC0415
    from transformers.image_transforms import convert_to_rgb  # noqa: PLC0415

    class Functions(TorchvisionBackend):  # type: ignore[misc]
        def resize(self, image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
            if not pillow:
                wanted = (size.height, size.width)
                return torch.nn.functional.interpolate(image, wanted, mode="bilinear", antialias=True)
            pictures = [Image.fromarray(pixels.permute(1, 2, 0).numpy()) for pixels in image]
            resized = [p.resize((size.width, size.height), Image.Resampling.BILINEAR) for p in pictures]
            return torch.stack([torch.from_numpy(np.array(p)).permute(2, 0, 1) for p in resized])

        def normalize(self, image: Any, mean: Sequence[float], std: Sequence[float], **kwargs: Any) -> Any:
            shift, spread = (torch.as_tensor(values, dtype=image.dtype).view(-1, 1, 1) for values in (mean, std))
            return image.sub(shift).div(spread)

    class Processor(processor_class(name), Functions):  # type: ignore[misc]
        resize, normalize = Functions.resize, Functions.normalize

        def preprocess(self, images: Any, **kwargs: Any) -> Any:
            images = images if isinstance(images, Sequence) else [images]
            flat = [image for given in images for image in (given if isinstance(given, list) else [given])]
            return super().preprocess([convert_to_rgb(image) for image in flat], **kwargs)

        def rescale_and_normalize(self, *args: Any, **kwargs: Any) -> Any:
            return super().rescale_and_normalize(*args, **kwargs).float()  # for a model in float32

    return Processor(**settings)


def processor_class(name: str) -> Any:
    """transformers' class, with what it imports of torchvision replaced where that is not installed."""
    module, _, class_name = name.rpartition(".")
    with _named_torchvision():
        return getattr(import_module(f"transformers.models.{module}"), class_name)


@contextmanager
def _named_torchvision() -> Iterator[None]:
    """Only the import of the processor's module finds it: elsewhere transformers asks whether it is installed."""
    if find_spec(NAMES[0]) is not None:
        yield
        return
    import transformers.image_processing_backends  # noqa: F401, PLC0415 (which imports torchvision where it is there)

    modules = {name: ModuleType(name) for name in NAMES}
    functional = modules[NAMES[-1]]
    modules[NAMES[-2]].functional = functional  # type: ignore[attr-defined]
    functional.pad = _pad  # type: ignore[attr-defined]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in NAMES:
            del sys.modules[name]


def _pad(image: Any, padding: Sequence[int], fill: Sequence[int]) -> Any:
    """padding: left, top, right, bottom."""
    import torch  # noqa: PLC0415

    assert not any(fill), "black"
    left, top, right, bottom = padding
    return torch.nn.functional.pad(image, (left, right, top, bottom))
