"""Write the goldens of image encoders: `python -m tests.models.make_image_encoder_goldens [case ...]`, with torch."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.family_reference import saved_shapes
from tests.models.image_encoders import N_CTX, PICTURES, TEXTS, Case, Golden, cases, save
from tests.models.published import checksum
from tests.models.reference import quiet
from tests.models.vision.pictures import Picture


class ImageEncoderReference:
    """One model of transformers with its image processor; eager attention, float32."""

    def __init__(self, case: Case, folder: Path) -> None:
        import transformers as hf  # noqa: PLC0415 (the goldens are checked without torch)
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil  # noqa: PLC0415
        from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil  # noqa: PLC0415

        self.case = case
        model_class = getattr(hf, case.model)
        with quiet():
            model_class(model_class.config_class(**case.arguments)).save_pretrained(folder)
            self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
            self.shapes = saved_shapes(folder / "model.safetensors")
            self.weights = case.weights(self.shapes)
            self.folder = case.write(folder, self.config, self.weights)
            self.model = model_class.from_pretrained(folder, dtype="float32", attn_implementation="eager").eval()
        processor_class = SiglipImageProcessorPil if "Siglip" in case.model else CLIPImageProcessorPil
        self.processor = processor_class(**case.processor)

    def vectors(self, pictures: Sequence[Picture]) -> NDArray[np.float32]:
        """[n, dim], not normalized."""
        import torch  # noqa: PLC0415

        with torch.inference_mode(), quiet():
            pixels = self.processor([picture.draw() for picture in pictures], return_tensors="pt")["pixel_values"]
            found = self.model.get_image_features(pixels)
            rows = found if isinstance(found, torch.Tensor) else found.pooler_output
        return np.asarray(rows.float().numpy(), np.float32)

    def texts(self) -> NDArray[np.float32]:
        """The vectors of TEXTS, [n, dim], not normalized; SigLIP's padded, as it was trained."""
        import torch  # noqa: PLC0415

        sizes, padded = self.model.config.text_config, "Siglip" in self.case.model
        if self.case.text is None:
            return np.empty((0, 0), np.float32)
        rows = []
        for ids in TEXTS:
            more = [sizes.pad_token_id] * (N_CTX - len(ids)) if padded else []
            with torch.inference_mode(), quiet():
                rows.append(self.model.get_text_features(torch.tensor([[*ids, *more]])).pooler_output[0])
        return np.stack([row.float().numpy() for row in rows])


def make(case: Case) -> Golden:
    with tempfile.TemporaryDirectory() as folder:
        reference = ImageEncoderReference(case, Path(folder))
        vectors = reference.vectors(PICTURES)
        return Golden(reference.config, reference.shapes, checksum(reference.weights), vectors, reference.texts())


def main(names: list[str]) -> None:
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    for case in cases():
        if not names or case.name in names:
            print(save(case, make(case)))


if __name__ == "__main__":
    main(sys.argv[1:])
