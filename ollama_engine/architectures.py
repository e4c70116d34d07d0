"""Every architecture, a row each: where its model and its converter are, and which dialect its models speak.

`models.registry`, `convert.registry` and `chat.dialects.detection` read these rows, each its own column, and import
nothing before it is asked for. tests/models/architectures has a file of cases for every row, found by the row's name.
"""

from __future__ import annotations

__all__ = ["ARCHITECTURES", "Registration"]


class Registration:
    """An architecture's row in the registry: its `general.architecture`, model class, converter and dialect.

    A plain class: every process imports this, and a NamedTuple or dataclass takes longer to make than all rows.
    """

    __slots__ = ("converter", "dialect", "model", "name", "not_run")

    def __init__(
        self, name: str, model: str | None, converter: str | None, dialect: str = "", not_run: str = ""
    ) -> None:
        self.name = name
        """`general.architecture` in GGUF files."""
        self.model = model
        """`module:Class` in `ollama_engine.models`; None where models can be converted, but not run yet."""
        self.converter = converter
        """Module of `ollama_engine.convert`; None where no folder is converted to such files."""
        self.dialect = dialect
        """Name of the dialect of `chat.dialects`, for files whose template says nothing.

        "": that of the row whose name this one begins with (qwen3 for qwen3vl), or none.
        """
        self.not_run = not_run
        """Why there is no model, for an error message."""


ARCHITECTURES = (
    Registration("apertus", "apertus:Apertus", "apertus", "apertus"),
    Registration("arcee", "arcee:Arcee", "llama"),
    Registration("bert", "bert:Bert", "bert"),
    Registration("clip-dual", "clip.model:ClipDual", "clip"),
    Registration("clip-vision", "clip.model:ClipVision", "clip"),
    Registration("cohere2", "command_r:Cohere2", "command_r", "command-r7b"),
    Registration("cohere2moe", "cohere2moe:Cohere2Moe", "command_r", "command-r7b"),
    Registration("command-r", "command_r:CommandR", "command_r", "command-r-plus"),
    Registration("deepseek2", "deepseek2:DeepSeek2", "deepseek2", "deepseek-v3"),
    Registration("deepseek2-ocr", "deepseek_ocr.model:DeepSeekOcr", "deepseek_ocr"),
    Registration(
        "eagle3",
        None,
        "eagle3",
        not_run="it is an EAGLE-3 head, which drafts for another model; load that model, and this file as its "
        "draft_model (--draft-model at the command line)",
    ),
    Registration("ernie4_5", "ernie4_5:Ernie45", "ernie4_5"),
    Registration("ernie4_5-moe", "ernie4_5:Ernie45Moe", "ernie4_5"),
    Registration("exaone4", "exaone4:Exaone4", "exaone4", "hermes"),
    Registration("falcon-h1", "falcon_h1:FalconH1", "falcon_h1"),
    Registration("gemma-embedding", "gemma_embedding:GemmaEmbedding", "gemma"),
    Registration("gemma2", "gemma2:Gemma2", "gemma", "gemma"),
    Registration("gemma3", "gemma3.model:Gemma3", "gemma", "gemma"),
    Registration("gemma3n", "gemma3n:Gemma3n", "gemma3n", "gemma"),
    Registration("gemma4", "gemma4.model:Gemma4", "gemma4", "gemma4"),
    Registration(
        "gemma4-assistant",
        None,
        "gemma4",
        not_run="it drafts for a Gemma 4, and is no model by itself; load that model, and this file as its draft_model "
        "(--draft-model at the command line)",
    ),
    Registration("glm4", "glm4:Glm4", "glm4", "glm"),
    Registration("glm4moe", "glm4moe:Glm4Moe", "glm4", "glm"),
    Registration("gpt-oss", "gpt_oss:GptOss", "gpt_oss", "harmony"),
    Registration("granite", "granite:Granite", "granite", "granite"),
    Registration("granitehybrid", "granitehybrid:GraniteHybrid", "granite", "granite"),
    Registration("granitemoe", "granite:GraniteMoe", "granite", "granite"),
    Registration("gte", "bert:Gte", "gte"),
    Registration("hunyuan-dense", "hunyuan:HunyuanDense", "hunyuan"),
    Registration("hunyuan-moe", "hunyuan:HunyuanMoe", "hunyuan"),
    Registration("idefics3", "idefics3.model:Idefics3", "idefics3"),
    Registration("internvl-qwen2", "internvl.model:InternVLQwen2", "internvl", "hermes"),
    Registration("internvl-qwen3", "internvl.model:InternVLQwen3", "internvl", "hermes"),
    Registration("jina-bert-v3", "jina_bert_v3:JinaBertV3", "jina_bert_v3"),
    Registration("kimi-linear", "kimi_linear:KimiLinear", "kimi_linear"),
    Registration("lfm2", "lfm2:Lfm2", "lfm2", "lfm2"),
    Registration("lfm2moe", "lfm2:Lfm2Moe", "lfm2", "lfm2"),
    Registration("llama", "llama:Llama", "llama"),
    Registration("llama4", "llama4.model:Llama4", "llama4"),
    Registration("llava", "llava.model:Llava", "llava"),
    Registration("mamba2", "mamba2:Mamba2", "mamba2"),
    Registration("minimax-m2", "minimax_m2:MiniMaxM2", "minimax_m2", "minimax-m2"),
    Registration("mistral3", "mistral3.model:Mistral3", "mistral3"),
    Registration("mistral4", "deepseek2:Mistral4", "deepseek2", "mistral-tekken"),
    Registration("mllama", "mllama.model:Mllama", "mllama"),
    Registration("modern-bert", "modern_bert:ModernBert", "modern_bert"),
    Registration("muse-glimmer", "muse_glimmer:MuseGlimmer", "muse_glimmer", "muse"),
    Registration("nemotron", "nemotron:Nemotron", "nemotron"),
    Registration("nemotron_h", "nemotron_h:NemotronH", "nemotron_h"),
    Registration("nemotron_h_moe", "nemotron_h:NemotronHMoe", "nemotron_h"),
    Registration("nomic-bert", "bert:NomicBert", "bert"),
    Registration("nomic-bert-moe", "bert:NomicBertMoe", "bert"),
    Registration("olmo-hybrid", "olmo_hybrid:OlmoHybrid", "olmo"),
    Registration("olmo2", "olmo2:Olmo2", "olmo"),
    Registration("phi3", "phi3:Phi3", "phi3", "phi4"),
    Registration("qwen2", "qwen2:Qwen2", "qwen", "hermes"),
    Registration("qwen25vl", "qwen25vl.model:Qwen25VL", "qwen25vl", "hermes"),
    Registration("qwen2moe", "qwen_moe:Qwen2Moe", "qwen", "hermes"),
    Registration("qwen3", "qwen3:Qwen3", "qwen", "hermes"),
    Registration("qwen35", "qwen35:Qwen35", "qwen35", "hermes"),
    Registration("qwen35moe", "qwen35:Qwen35Moe", "qwen35", "hermes"),
    Registration("qwen3moe", "qwen_moe:Qwen3Moe", "qwen", "hermes"),
    Registration("qwen3next", "qwen35:Qwen3Next", "qwen35", "hermes"),
    Registration("qwen3vl", "qwen3vl.model:Qwen3VL", "qwen3vl", "hermes"),
    Registration("qwen3vlmoe", "qwen3vl.model:Qwen3VLMoe", "qwen3vl", "hermes"),
    Registration("seed_oss", "seed_oss:SeedOss", "seed_oss", "seed-oss"),
    Registration("siglip-dual", "clip.model:SiglipDual", "clip"),
    Registration("siglip-vision", "clip.model:SiglipVision", "clip"),
    Registration("smollm3", "smollm3:SmolLM3", "llama", "smollm3"),
    Registration("starcoder2", "starcoder2:StarCoder2", "starcoder"),
)
