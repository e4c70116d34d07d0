"""The application of config files: what its arguments are, and the example for Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")
yaml = pytest.importorskip("yaml")

from ollama_engine.errors import ConfigError  # noqa: E402
from ollama_engine.ray import ReplicaOptions, build  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ray" / "rayservice.yaml"

pytestmark = pytest.mark.slow  # Ray takes seconds to import


def engines(found: Any) -> Any:
    """The deployment of engines in an application."""
    return found._bound_deployment.init_args[1]._bound_deployment


def test_the_example_is_an_application() -> None:
    service = yaml.safe_load(EXAMPLE.read_text())
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    module, _, name = application["import_path"].partition(":")
    assert (module, name) == (build.__module__.rpartition(".")[0], "build")
    found = engines(build(application["args"]))
    scaling = found._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (2, 8, 16)
    settings, threads = found.init_args
    assert (settings.num_parallel, settings.host, threads) == (16, "0.0.0.0", 4)


def test_arguments_are_checked() -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        build({"num_paralel": 4})
    with pytest.raises(ConfigError, match="GGUF files"):
        build({"models_served": ["/nowhere/model.gguf"]})
    with pytest.raises(ConfigError, match="min_replicas"):
        ReplicaOptions(3, 2)
    assert engines(build({"min_replicas": 2, "max_replicas": 2}))._deployment_config.num_replicas == 2
