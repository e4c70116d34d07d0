import logging

from ollama_engine.ml.device.device_info import Device

log: logging.Logger

def devices() -> tuple[Device, ...]: ...
def ggml_version() -> str: ...
