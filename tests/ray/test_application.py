"""The application of config files: what its arguments are, and the example for Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")
yaml = pytest.importorskip("yaml")

from ollama_engine.errors import ConfigError  # noqa: E402
from ollama_engine.ray import ReplicaOptions, build, program  # noqa: E402

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


def test_ray_serve_takes_the_examples_configuration() -> None:
    """By its own schema, which does not see names that it does not know: these are looked for here."""
    from ray.serve.schema import HTTPOptionsSchema, ServeApplicationSchema, ServeDeploySchema  # noqa: PLC0415

    written = yaml.safe_load(yaml.safe_load(EXAMPLE.read_text())["spec"]["serveConfigV2"])
    taken = ServeDeploySchema.model_validate(written)
    assert (taken.http_options.host, taken.http_options.port) == ("0.0.0.0", 8000)
    assert [(found.name, found.route_prefix) for found in taken.applications] == [("ollama-engine", "/")]
    assert set(written) <= set(ServeDeploySchema.model_fields)
    assert set(written["http_options"]) <= set(HTTPOptionsSchema.model_fields)
    assert set(written["applications"][0]) <= set(ServeApplicationSchema.model_fields)


CLUSTER_FIELDS = {
    "rayVersion", "enableInTreeAutoscaling", "autoscalerOptions", "headServiceAnnotations", "suspend", "headGroupSpec",
    "workerGroupSpecs",
}  # fmt: skip
HEAD_FIELDS = {"serviceType", "headService", "enableIngress", "rayStartParams", "template"}
WORKER_FIELDS = {
    "groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams", "template", "scaleStrategy",
}  # fmt: skip


def test_the_examples_fields_are_those_of_kuberay() -> None:
    """Names in the Go types of its v1 API (ray-operator/apis/ray/v1), which a cluster would check."""
    service = yaml.safe_load(EXAMPLE.read_text())
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    cluster = service["spec"]["rayClusterConfig"]
    assert set(service["spec"]) == {"serveConfigV2", "rayClusterConfig"}
    assert set(cluster) <= CLUSTER_FIELDS
    assert set(cluster["headGroupSpec"]) <= HEAD_FIELDS
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        spec = group["template"]["spec"]
        mounts = {mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in spec["volumes"]}
    (workers,) = cluster["workerGroupSpecs"]
    assert set(workers) <= WORKER_FIELDS
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    args, (container,) = application["args"], workers["template"]["spec"]["containers"]
    assert int(container["resources"]["limits"]["cpu"]) == args["cpus"]  # one engine fills a worker
    assert (workers["minReplicas"], workers["maxReplicas"]) == (args["min_replicas"], args["max_replicas"])


def test_replicas_follow_the_queue_where_their_number_may_change() -> None:
    fixed = engines(build({"min_replicas": 2, "max_replicas": 2}))._deployment_config
    assert (fixed.num_replicas, fixed.autoscaling_config) == (2, None)
    by_default = engines(build({"max_replicas": 3, "num_parallel": 6}))._deployment_config.autoscaling_config
    assert (by_default.min_replicas, by_default.max_replicas) == (1, 3)
    assert by_default.target_ongoing_requests == 6
    assert (by_default.upscale_delay_s, by_default.downscale_delay_s) == (10, 300)
    chosen = {
        "min_replicas": 0,
        "max_replicas": 4,
        "target_requests": 2.5,
        "upscale_seconds": 1,
        "downscale_seconds": 2,
    }
    found = engines(build(chosen))._deployment_config.autoscaling_config
    assert (found.min_replicas, found.target_ongoing_requests) == (0, 2.5)
    assert (found.upscale_delay_s, found.downscale_delay_s) == (1, 2)
    # A replica takes more than is its share, so that requests wait where Ray counts them.
    deployed = engines(build({"num_parallel": 6, "max_queue": 30}))._deployment_config
    assert deployed.max_ongoing_requests == 36


def test_arguments_are_checked() -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        build({"num_paralel": 4})
    with pytest.raises(ConfigError, match="GGUF files"):
        build({"models_served": ["/nowhere/model.gguf"]})
    with pytest.raises(ConfigError, match="min_replicas"):
        ReplicaOptions(3, 2)


def test_a_replica_that_is_larger_than_the_cluster_is_refused_though_none_runs_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first request would wait for ever."""
    monkeypatch.setattr(program.ray, "cluster_resources", lambda: {"CPU": 2.0})
    program._refuse_what_does_not_fit(ReplicaOptions(0, 4, cpus=2))
    with pytest.raises(ConfigError, match=r"replicas: 1 need 8 CPUs, and the cluster has 2"):
        program._refuse_what_does_not_fit(ReplicaOptions(0, 4, cpus=8))
    with pytest.raises(ConfigError, match=r"replicas: 2 need 2 GPUs, and the cluster has 0"):
        program._refuse_what_does_not_fit(ReplicaOptions(2, 4, gpus=1))
