"""Every architecture, a row each: where its model and its converter are.

`models.registry` and `convert.registry` read these rows, each its own column, and import nothing before it is asked
for. tests/models/architectures has a file of cases for every row, found by the row's name.
"""

from __future__ import annotations

__all__ = ["ARCHITECTURES", "Registration"]


class Registration:
    """An architecture's row in the registry: its `general.architecture`, model class and converter.

    A plain class: every process imports this, and a NamedTuple or dataclass takes longer to make than all rows.
    """

    __slots__ = ("converter", "model", "name", "not_run")

    def __init__(self, name: str, model: str | None, converter: str | None, not_run: str = "") -> None:
        self.name = name
        """`general.architecture` in GGUF files."""
        self.model = model
        """`module:Class` in `ollama_engine.models`; None where models can be converted, but not run yet."""
        self.converter = converter
        """Module of `ollama_engine.convert`; None where no folder is converted to such files."""
        self.not_run = not_run
        """Why there is no model, for an error message."""


ARCHITECTURES = (
    Registration("bert", "bert:Bert", "bert"),
    Registration("clip-vision", "clip.model:ClipVision", "clip"),
    Registration("cohere2", "command_r:Cohere2", "command_r"),
    Registration("command-r", "command_r:CommandR", "command_r"),
    Registration("deepseek2", "deepseek2:DeepSeek2", "deepseek2"),
    Registration("falcon-h1", "falcon_h1:FalconH1", "falcon_h1"),
    Registration("gemma-embedding", "gemma_embedding:GemmaEmbedding", "gemma"),
    Registration("gemma2", "gemma2:Gemma2", "gemma"),
    Registration("gemma3", "gemma3.model:Gemma3", "gemma"),
    Registration("gemma3n", "gemma3n:Gemma3n", "gemma3n"),
    Registration("gemma4", "gemma4.model:Gemma4", "gemma4"),
    Registration("gpt-oss", "gpt_oss:GptOss", "gpt_oss"),
    Registration("granitehybrid", "granitehybrid:GraniteHybrid", "granite_hybrid"),
    Registration("jina-bert-v3", "bert:JinaBertV3", "bert"),
    Registration("kimi-linear", "kimi_linear:KimiLinear", "kimi_linear"),
    Registration("lfm2", "lfm2:Lfm2", "lfm2"),
    Registration("lfm2moe", "lfm2:Lfm2Moe", "lfm2"),
    Registration("llama", "llama:Llama", "llama"),
    Registration("llama4", "llama4.model:Llama4", "llama4"),
    Registration("llava", "llava.model:Llava", "llava"),
    Registration("mamba2", "mamba2:Mamba2", "mamba2"),
    Registration("mistral3", "mistral3.model:Mistral3", "mistral3"),
    Registration("mistral4", "deepseek2:Mistral4", "deepseek2"),
    Registration("mllama", "mllama.model:Mllama", "mllama"),
    Registration("modern-bert", "modern_bert:ModernBert", "modern_bert"),
    Registration("nemotron_h", "nemotron_h:NemotronH", "nemotron_h"),
    Registration("nemotron_h_moe", "nemotron_h:NemotronHMoe", "nemotron_h"),
    Registration("nomic-bert", "bert:NomicBert", "bert"),
    Registration("nomic-bert-moe", "bert:NomicBertMoe", "bert"),
    Registration("olmo2", "olmo2:Olmo2", "olmo"),
    Registration("phi3", "phi3:Phi3", "phi3"),
    Registration("qwen2", "qwen2:Qwen2", "qwen"),
    Registration("qwen25vl", "qwen25vl:Qwen25VL", "qwen25vl"),
    Registration("qwen2moe", "qwen_moe:Qwen2Moe", "qwen"),
    Registration("qwen3", "qwen3:Qwen3", "qwen"),
    Registration("qwen35", "qwen35:Qwen35", "qwen35"),
    Registration("qwen35moe", "qwen35:Qwen35Moe", "qwen35"),
    Registration("qwen3moe", "qwen_moe:Qwen3Moe", "qwen"),
    Registration("qwen3next", "qwen35:Qwen3Next", "qwen35"),
    Registration("siglip-vision", "clip.model:SiglipVision", "clip"),
    Registration("starcoder2", "starcoder2:StarCoder2", "starcoder"),
)
