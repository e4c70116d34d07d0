"""Suites without which a run proves little, and which are skipped where something is not installed or not downloaded.

`pytest --exhaustive --require-key-suites` fails where a test of theirs was skipped, or a module of theirs had no test
that ran; modules outside of the paths that it is given, or below one that it is to ignore, are not its task. CI asks
for it, unless it is told that its machine has no network.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Mapping

import pytest

from tests.plugins.not_run_here import NOT_HERE

MODELS = "tests/models"
SUITES: dict[str, tuple[str, ...]] = {
    "templates of published models": (
        "tests/chat/dialects/test_templates.py",
        "tests/chat/test_families.py",
        "tests/chat/test_images_in_templates.py",
        "tests/chat/test_rendering.py",
        "tests/chat/test_template_form.py",
        "tests/chat/test_tools_without_place.py",
    ),
    "injection": ("tests/chat/test_injection.py",),
    "SmolLM2": (
        "tests/published/test_smollm2.py",
        "tests/published/test_smollm2_bits.py",
        "tests/engine/test_chat.py",
        "tests/engine/test_score.py",
        "tests/sample/constraints/test_random_schemas.py",
    ),
    "Gemma 3": ("tests/published/test_gemma3.py",),
    "the JSON Schema suite": ("tests/sample/constraints/test_official_suite.py",),
    "the page in Chromium": ("tests/server/page/test_page.py",),
    "the site in Chromium": ("tests/website/test_site.py",),
    "the docker registry": ("tests/store/test_docker_registry.py",),
    "HTTP fuzzing": ("tests/server/test_fuzzing.py",),
    "live transformers": (
        f"{MODELS}/test_reference.py",
        f"{MODELS}/test_family_reference.py",
        f"{MODELS}/test_encoder_reference.py",
        f"{MODELS}/test_vision_reference.py",
        f"{MODELS}/test_image_encoders.py",
        f"{MODELS}/test_gemma3_vision.py",
        f"{MODELS}/test_llava.py",
        f"{MODELS}/test_mllama_reference.py",
        f"{MODELS}/test_qwen25vl.py",
        f"{MODELS}/test_qwen3vl.py",
        f"{MODELS}/llama4/test_preprocess.py",
        "tests/convert/test_vision_reference.py",
        "tests/convert/vocab/test_clip.py",
        "tests/models/test_vl_embedding.py",
        "tests/convert/test_source.py",
        "tests/ml/ops/test_ops_image.py",
    ),
    "Ray": (
        "tests/ray/test_application.py",
        "tests/ray/test_batch_generator.py",
        "tests/ray/test_cluster.py",
        "tests/ray/test_proxied.py",
        "tests/ray/test_replicas.py",
        "tests/ray/test_sending.py",
    ),
}
"""Modules of each. What the CPU cannot run may be skipped in them."""

MISSING = 7
"""The exit status where one did not run; pytest has none above 5."""


def asked_for(paths: Collection[str], ignored: Collection[str]) -> dict[str, list[str]]:
    """{suite: those of its modules that are a run's task}. Paths as the modules', of files or folders; "." is all."""

    def below(module: str, some: Collection[str]) -> bool:
        return any(path == "." or f"{module}/".startswith(f"{path}/") for path in some)

    return {
        suite: [module for module in modules if below(module, paths) and not below(module, ignored)]
        for suite, modules in SUITES.items()
    }


def not_run(suites: Mapping[str, Collection[str]], ran: Collection[str], skipped: Mapping[str, str]) -> list[str]:
    """What is missing, a line each.

    suites: {suite: its modules}. ran: node ids of tests that ran, or cannot on this CPU. skipped: {node id of another
    test or of a module: reason}.
    """
    lines = []
    for suite, modules in suites.items():
        for module in modules:
            inside = {test: reason for test, reason in skipped.items() if test.partition("::")[0] == module}
            lines += [f"{suite}: {test} was skipped: {reason}" for test, reason in inside.items()]
            if not inside and not any(test.startswith(f"{module}::") for test in ran):
                lines.append(f"{suite}: no test of {module} ran")
    return lines


class KeySuites:
    """Where reports of all processes come together."""

    def __init__(self, suites: Mapping[str, Collection[str]]) -> None:
        self._suites = suites
        self._ran: set[str] = set()
        self._skipped: dict[str, str] = {}
        self._missing: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._skip(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self._skip(report)
        elif report.when == "call":
            self._ran.add(report.nodeid)

    def _skip(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if NOT_HERE in reason:
            self._ran.add(report.nodeid)
        else:
            self._skipped[report.nodeid] = reason

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self._missing = not_run(self._suites, self._ran, self._skipped)
        if self._missing and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            session.exitstatus = MISSING

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # after all others
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        yield
        for line in self._missing:
            terminalreporter.write_line(f"key suite did not run: {line}", red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-key-suites", action="store_true", help="fail where one of key_suites.py did not run")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("require_key_suites") and not hasattr(config, "workerinput"):
        suites = asked_for(_paths(config, config.args), _paths(config, config.getoption("ignore") or []))
        config.pluginmanager.register(KeySuites(suites))


def _paths(config: pytest.Config, names: list[str]) -> list[str]:
    """As those of modules: from the root."""
    here = config.invocation_params.dir
    return [os.path.relpath(here / name.partition("::")[0], config.rootpath) for name in names]
