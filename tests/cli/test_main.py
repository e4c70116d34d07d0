"""The error door: exit codes, messages without tracebacks, environment, broken pipes, poor terminals, import cost."""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from ollama_engine import __version__
from ollama_engine.cli import main
from ollama_engine.cli.errors import EXIT_INTERRUPTED, Flags, UsageError, describe, exit_code
from ollama_engine.cli.measure import devices
from ollama_engine.errors import ChatError, ConfigError, ContextOverflowError, DeviceError, Option
from tests.cli.program import COMMAND, environment, imported_by, program
from tests.support.tiny import write_tiny_llama

USAGE = [
    ([], "required: COMMAND"),
    (["fly"], "there is no command 'fly'\n"),
    (["help", "fly"], "there is no command 'fly'\n"),
    (["chat"], "there is no command 'chat'; did you mean run?"),
    (["qantize"], "there is no command 'qantize'; did you mean quantize?"),
    (["run"], "required: MODEL"),
    (["run", "demo", "--top-k", "x"], "argument --top-k: expected a whole number, got 'x'"),
    (["run", "demo", "hello", "--top-k", "-1"], "error: --top-k must be an integer"),
    (["run", "demo", "hello", "--num-ctx", "0"], "error: --num-ctx is a whole number"),
    (["run", "demo", "hello", "--num-keep", "-1"], "error: --num-keep is a whole number"),
    (["run", "demo", "hello", "--on-overflow", "grow"], "argument --on-overflow: invalid choice: 'grow'"),
    (["run", "demo", "hello", "--timeout", "0"], "error: --timeout is a number of seconds above 0"),
    (
        ["run", "demo", "hello", "--num-ctx", "64", "--on-overflow", "shift", "--num-keep", "64"],
        "error: --num-keep is 0 to",
    ),
    (["run", "demo", "hello", "--main-gpu", "70"], "error: --main-gpu "),
    (["run", "demo", "hello", "--logit-bias", "99999=1"], "error: --logit-bias names token 99999"),
    (["embed", "demo", "hello", "--dimensions", "0"], "error: --dimensions is a whole number from 1 to"),
    (["embed", "demo", "hello", "--pooling", "cls"], "error: --pooling is cls, but the first token"),
    (["perplexity", "demo", "-", "--ctx", "99999999"], "error: --ctx is a whole number from 1 to"),
    (["quantize", "demo", "out.gguf", "Q9"], "error: TYPE is one of F32, F16, "),
    (["quantize", "demo", "out.gguf", "Q8_0", "-t", "0"], "error: --threads is 1 or more, got 0"),
    (["convert", ".", "-o", "out.gguf", "-t", "0"], "error: --threads is 1 or more, got 0"),
    (["run", "demo", "--seed", "1", "one", "two"], "unrecognized arguments: two"),
    (["run", "demo", "hello", "--logprobs", "1"], "unrecognized arguments: --logprobs 1\n"),
    (["run", "demo", "hello", "--temp=1"], "unrecognized arguments: --temp=1; did you mean --temperature?"),
    (["run", "demo", "hello", "--ctx-size=8"], "unrecognized arguments: --ctx-size=8; did you mean --num-ctx?"),
    (
        ["run", "demo", "hello", "-md", "small.gguf"],
        "unrecognized arguments: -md small.gguf; did you mean --draft-model?",
    ),
    (["run", "demo", "hello", "-ctk", "q8_0"], "unrecognized arguments: -ctk q8_0; did you mean --kv-cache-type?"),
    (["run", "demo", "hello", "-ngl", "99"], "expected a whole number, got 'gl'; did you mean --gpu-layers?"),
    (["serve", "--max-model-len", "64"], "unrecognized arguments: --max-model-len; did you mean --context-length?"),
    (
        ["serve", "-ngl", "99"],
        "unrecognized arguments: -ngl; requests have it among their options, and Modelfiles as a PARAMETER: num_gpu",
    ),
    (["serve", "--temp", "0"], "a PARAMETER: temperature"),
    (["serve", "--enable-prefix-caching"], "unrecognized arguments: --enable-prefix-caching; prompts that begin alike"),
    (["run", "demo", "hello", "-zz"], "unrecognized arguments: -zz\n"),
    (["cache"], "required: ls|rm|verify\n"),
    (["cache", "ls", "--folder", ""], "error: --folder is the path of a folder, got an empty one"),
    (["embed", "demo", "hello", "--dimension", "8"], "did you mean --dimensions?"),
    (["bench", "demo", "-p", "0", "-n", "0"], "error: -p and -n are 0 or more"),
    (["bench", "demo", "-p", "-1"], "error: -p and -n are 0 or more"),
    (["bench", "demo", "-r", "0"], "error: -r is 1 or more"),
    (["bench", "demo", "-r", "many"], "argument -r/--repetitions: expected a whole number, got 'many'"),
    (["devices", "extra"], "unrecognized arguments: extra"),
]

FAILURES = [
    (["show", "{missing}"], "error: {missing}: No such file or directory"),
    (["run", "{missing}", "hello"], "error: {missing}: No such file or directory"),
    (["bench", "{missing}"], "error: {missing}: No such file or directory"),
    (["show", "{folder}"], "error: {folder}: is a directory"),
    (["show", "{text}"], "error: {text}: not a GGUF file"),
    (["run", "{text}", "hello"], "error: {text}: not a GGUF file"),
    (["run", "{other}", "hello"], "{other}: architecture 'other' is not supported"),
    (
        ["run", "{tiny}", "a b c d e f g h", "--num-ctx", "4"],
        "--num-ctx is 4; shorten it, choose a larger --num-ctx, or let it be cut with --on-overflow truncate or "
        "--on-overflow shift\n",
    ),
]


@pytest.fixture(scope="module")
def places(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("places")
    (folder / "text.gguf").write_text("not a model, but long enough to be one", encoding="utf-8")
    other = write_tiny_llama(folder / "other.gguf", metadata={"general.architecture": "other"}).path
    return {
        "tiny": tiny,
        "folder": str(folder),
        "text": str(folder / "text.gguf"),
        "missing": str(folder / "missing.gguf"),
        "other": other,
    }


@pytest.mark.parametrize(("argv", "message"), USAGE, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_wrong_usage_ends_with_2(cli, argv: list[str], message: str) -> None:
    result = cli(*argv)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(("argv", "message"), FAILURES, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_errors_end_with_1_and_one_line(cli, places: dict[str, str], argv: list[str], message: str) -> None:
    result = cli(*(part.format(**places) for part in argv))
    assert (result.code, result.out) == (1, "")
    assert message.format(**places) in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("argv", [["--debug", "show", "nowhere.gguf"], ["show", "nowhere.gguf", "--debug"]])
def test_debug_shows_the_traceback_too(cli, argv: list[str]) -> None:
    result = cli(*argv)
    assert result.code == 1
    assert "Traceback" in result.err
    assert result.err.rstrip().endswith("error: nowhere.gguf: No such file or directory")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, ""),
        (UsageError("give less"), 2, "error: give less"),
        (ConfigError("too much"), 1, "error: too much"),
        (DeviceError("GPU 3 is gone"), 1, "error: GPU 3 is gone"),
        (PermissionError(13, "Permission denied", "m.gguf"), 1, "error: m.gguf: Permission denied"),
        (OSError(28, "No space left on device"), 1, "error: No space left on device"),
        (MemoryError(), 1, "error: out of memory"),
        (KeyError("x"), 1, "error: this should not happen, please report it with the output of --debug: KeyError: 'x'"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, BaseException) else None,
)
def test_what_each_error_becomes(
    cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def fail(args: object) -> None:
        raise error

    monkeypatch.setattr(devices, "main", fail)
    result = cli("devices")
    assert (result.code, result.err.strip()) == (code, message)


def test_a_command_is_advised_what_it_can_do() -> None:
    """Each by the flags that it has; what it has none for is left out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ctx", "-c", dest="num_ctx")
    parser.add_argument("--cut", dest="on_overflow", action="store_const", const="truncate")
    parser.add_argument("--think", choices=("true", "false"))
    parser.add_argument("preset", metavar="TYPE")
    flags = Flags(parser._actions)
    error = ContextOverflowError(
        "too long for ", Option("num_ctx"), " beside ", Option("parallel"),
        advice=["shorten it", ("lower ", Option("parallel")), ("raise ", Option("num_ctx")),
                ("say ", Option("on_overflow", "truncate")), ("say ", Option("on_overflow", "shift"))],
    )  # fmt: skip
    assert describe(error, flags) == "too long for --ctx beside parallel; shorten it, raise --ctx, or say --cut"
    assert describe(ConfigError(Option("preset"), " is odd"), flags) == "TYPE is odd"
    assert describe(ChatError(Option("think", True), ": no switch"), flags) == "--think true: no switch"
    assert exit_code(error, flags) == 1
    assert exit_code(ConfigError(Option("num_ctx"), " is odd"), flags) == 2
    assert exit_code(ConfigError(Option("parallel"), " is odd"), flags) == 1, "nothing that was typed"


def test_errors_without_words_have_their_name() -> None:
    assert describe(ConfigError()) == "ConfigError"
    assert describe(OSError()) == "OSError"


def test_the_console_script_is_this_program() -> None:
    try:
        installed = distribution("ollama_engine")
    except PackageNotFoundError:
        pytest.skip("the sources run here, and no package is installed")
    (script,) = installed.entry_points.select(group="console_scripts", name="ollama-engine")
    assert script.value == "ollama_engine.__main__:program"
    assert script.load() is main.program


def test_the_process_of_a_program_is_set_up_to_start_and_end_soon() -> None:
    """What `program` does, seen by a handler that runs at the very end."""
    code = (
        "import atexit, gc, os, sys\n"
        "from ollama_engine.cli.main import program\n"
        "atexit.register(lambda: print(gc.get_threshold()[0], gc.get_freeze_count() > 1000,"
        " os.environ['OPENBLAS_NUM_THREADS']))\n"
        "sys.exit(program())"
    )
    unset = {name: value for name, value in environment().items() if name != "OPENBLAS_NUM_THREADS"}
    for env, threads in ((unset, "1"), ({**unset, "OPENBLAS_NUM_THREADS": "3"}, "3")):
        done = subprocess.run(
            [sys.executable, "-c", code, "devices"], capture_output=True, text=True, env=env, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1] == f"{main.COLLECT_AFTER} True {threads}"


def test_main_leaves_the_process_as_it_is(cli) -> None:
    """It may be called by a program of somebody else's."""
    before = (gc.get_threshold(), gc.get_freeze_count(), dict(os.environ))
    assert cli("devices").code == 0
    assert (gc.get_threshold(), gc.get_freeze_count(), dict(os.environ)) == before


# -- environment -------------------------------------------------------------------------------------------------------


def test_the_log_level_comes_from_the_environment(cli, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ("run", tiny, "hello", "--num-ctx", "5000", "--max-tokens", "1")
    assert "warning: num_ctx 5000 is more than the 4096 tokens" in cli(*argv).err
    monkeypatch.setenv(main.LOG_VARIABLE, "error")
    assert cli(*argv).err == ""
    monkeypatch.setenv(main.LOG_VARIABLE, "")
    assert "warning: " in cli(*argv).err


@pytest.mark.parametrize("level", [*main.LEVELS, "INFO"])
def test_every_log_level_is_taken(cli, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv(main.LOG_VARIABLE, level)
    assert cli("devices").code == 0


def test_an_unknown_log_level_is_wrong_usage(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(main.LOG_VARIABLE, "loud")
    result = cli("devices")
    assert result.code == 2
    assert "OLLAMA_ENGINE_LOG is one of trace, debug, info, warning, error, got 'loud'" in result.err


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [["--version"], ["--help"]])
def test_version_and_help_import_next_to_nothing(argv: list[str]) -> None:
    modules, out = imported_by(argv)
    heavy = {"numpy", "regex", "tokenizers", "ollama_engine.ml", "ollama_engine.engine", "ollama_engine.sample"}
    assert not modules & heavy
    assert out


def test_version_and_help_say_so(cli) -> None:
    assert cli("--version").out == f"ollama-engine {__version__}\n"
    shown = cli("--help").out
    assert all(f"    {command}" in shown for command in main.COMMANDS)
    assert main.LOG_VARIABLE in shown
    assert cli("help").out == shown
    assert cli("help", "devices").out == cli("devices", "--help").out


@pytest.mark.parametrize("command", list(main.COMMANDS))
def test_every_command_has_help(cli, command: str) -> None:
    result = cli(command, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"usage: ollama-engine {command}")
    assert "0 done, 1 failed, 2 wrong options or arguments, 130 interrupted (Ctrl-C)" in result.out
    assert ("--max-queue" in result.out) == (command == "serve"), "the others make one call at a time"


def test_a_reader_that_leaves_is_no_error() -> None:
    process = subprocess.Popen(
        [*COMMAND, "show", "demo", "--metadata", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as stderr:
        assert stderr.read() == b""
    assert process.wait(60) == 0


def test_a_reader_that_left_before_the_answer_is_no_error(tiny: str) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    argv = [*COMMAND, "run", tiny, "hello", "--max-tokens", "8"]
    done = subprocess.run(
        argv, stdout=theirs, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60, check=False
    )
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("arguments", [["devices"], ["run", "demo", "hi", "-n", "3"], ["--help"]], ids=lambda v: v[0])
def test_a_full_disk_is_said_once(arguments: list[str], unbuffered: str) -> None:
    """Also where what could not be written is still in a buffer: Python flushes that again when it ends."""
    variables = environment() | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, env=variables, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"error: standard output: No space left on device\n")


def test_an_interrupt_of_its_imports_ends_it_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "ollama_engine.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "ollama_engine.cli.main")
    monkeypatch.delattr("ollama_engine.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "ollama_engine.__main__", raising=False)
    with pytest.raises(SystemExit) as ended:
        import_module("ollama_engine.__main__")
    assert ended.value.code == EXIT_INTERRUPTED


def test_its_package_imports_next_to_nothing() -> None:
    """It comes before the module that catches an interrupt."""
    root = str(Path(main.__file__).parents[2])
    seen = "import sys; sys.path.insert(0, sys.argv[1]); import ollama_engine; print(*sys.modules)"
    # -S: what site imports would hide what the package does
    done = subprocess.run([sys.executable, "-S", "-c", seen, root], capture_output=True, text=True, check=True)
    assert "ollama_engine.lazy" in done.stdout.split()
    assert not {"typing", "re", "enum", "dataclasses", "ollama_engine.errors"} & set(done.stdout.split())


@pytest.mark.parametrize("command", ["devices", "run demo hi --max-tokens 1"])
def test_closed_streams_do_not_matter(command: str) -> None:
    for closed in (">&-", ">&- 2>&- <&-"):
        script = " ".join((*COMMAND, command, closed))
        done = subprocess.run(
            ["sh", "-c", script], env=environment(), timeout=60, check=False, capture_output=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")


def test_no_file_gets_the_number_of_a_closed_stream() -> None:
    """C libraries print to descriptors 1 and 2, whatever these are. Importing opens none: they are the caller's."""
    code = "import os, ollama_engine.cli.main as m; {}; os._exit(os.open('/', os.O_RDONLY))"
    opened = "m.open_closed_streams(); [os.get_inheritable(n) or os._exit(1) for n in range(3)]"
    numbers = []
    for what in ("pass", opened):
        script = f'{sys.executable} -c "{code.format(what)}" <&- >&- 2>&-'
        numbers.append(subprocess.run(["sh", "-c", script], env=environment(), timeout=60, check=False).returncode)
    assert numbers[0] == 0
    assert numbers[1] >= 3


def test_a_terminal_without_the_characters_shows_escapes(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", metadata={"general.name": "Größe ☃"}).path
    done = program("show", model, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert (done.code, done.err) == (0, "")
    assert rb"Gr\xf6\xdfe \u2603" in done.out
