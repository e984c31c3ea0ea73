"""The `octavo` command as its users and the operator see it: options, exit codes, last words."""

import inspect
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.engine.gguf_files import hf_weights, write_gguf
from tests.engine.server_process import serving_process

from octavo_engine.cli.options import engine_config, with_engine_options
from octavo_engine.cli.termination import MAX_MESSAGE_BYTES, Termination, encode, explain
from octavo_engine.config import (
    CacheSettings,
    EngineConfig,
    ModelSettings,
    ParallelSettings,
    SchedulerSettings,
)
from octavo_engine.errors import CheckpointError, ConfigError, EngineDead, EngineStalled


def octavo(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "octavo_engine", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_misspelt_option_is_answered_with_the_right_one(tmp_path: Path) -> None:
    log = tmp_path / "termination"
    result = octavo("serve", "model", "--max-modl-len", "5", "--termination-log", str(log))
    assert result.returncode == 2
    assert "--max-model-len" in result.stderr
    last_words = json.loads(log.read_text())
    assert last_words["reason"] == "InvalidConfiguration"
    assert "--max-modl-len" in last_words["message"]


def test_model_that_cannot_be_read_ends_with_code_2_and_a_reason(tmp_path: Path) -> None:
    log = tmp_path / "termination"
    missing = tmp_path / "no-such-model"
    result = octavo(
        "serve", str(missing), "--port", str(free_port()), "--termination-log", str(log)
    )
    assert result.returncode == 2
    last_words = json.loads(log.read_text())
    assert last_words["reason"] == "ModelUnreadable"
    assert str(missing) in last_words["message"]
    assert last_words["message"] in result.stderr
    assert "Traceback" not in result.stderr


def test_setting_that_cannot_work_ends_with_code_2_and_a_reason(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "tiny.gguf", hf_weights())
    log = tmp_path / "termination"
    options = ["--tensor-parallel-size", "3", "--port", str(free_port())]
    result = octavo("serve", str(model), *options, "--termination-log", str(log))
    assert result.returncode == 2
    last_words = json.loads(log.read_text())
    assert last_words["reason"] == "InvalidConfiguration"
    assert "3" in last_words["message"]


def test_two_signals_end_a_process_with_code_0_although_a_stream_runs(tmp_path: Path) -> None:
    """Also shows that a GGUF file is served as it is, under its own name."""
    model = write_gguf(tmp_path / "tiny.gguf", hf_weights())
    with serving_process(model, free_port(), "--drain-grace-seconds", "60") as server:
        server.wait_ready()
        body = {"model": "tiny", "prompt": "ab", "stream": True, "ignore_eos": True}
        body |= {"max_tokens": 250, "logit_bias": {"0": -100}}
        began = threading.Event()
        lines: list[str] = []

        def read() -> None:
            url = f"{server.url}/v1/completions"
            with httpx.stream("POST", url, json=body, timeout=60) as response:
                for line in response.iter_lines():
                    lines.append(line)
                    began.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert began.wait(60)
        server.signal(signal.SIGTERM)
        # The system merges two signals that wait: the second only counts once the first is seen.
        server.wait_status("/readyz", 503)
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0, server.log
        reader.join()
    assert lines[-2] == "data: [DONE]"


@pytest.mark.parametrize(
    ("error", "reason", "exit_code"),
    [
        (ConfigError("block_size 3"), "InvalidConfiguration", 2),
        (CheckpointError("no config.json"), "ModelUnreadable", 2),
        (MemoryError("9 GiB"), "OutOfMemory", 1),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "OutOfMemory", 1),
        (EngineDead("the engine has stopped: OutOfMemoryError: CUDA out"), "OutOfMemory", 1),
        (
            EngineDead("the engine has stopped: AcceleratorError: CUDA error: misaligned address"),
            "GPUFault",
            1,
        ),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "GPUFault", 1),
        (EngineStalled("work waits and no step was made for 61 s"), "EngineStalled", 1),
        (RuntimeError("boom"), "EngineFailed", 1),
    ],
)
def test_error_has_a_reason_and_an_exit_code(error: Exception, reason: str, exit_code: int) -> None:
    termination = explain(error)
    assert (termination.reason, termination.exit_code) == (reason, exit_code)
    assert str(error) in termination.message


def test_last_words_stay_short() -> None:
    content = encode(Termination("EngineFailed", "é\n" * 10_000))
    assert len(content) <= MAX_MESSAGE_BYTES
    assert json.loads(content)["message"].endswith("…")


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, octavo_engine; octavo_engine.SamplingParams; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "False\n"


def test_every_engine_setting_has_its_option_and_default() -> None:
    """A new field of the settings needs its line in the table of options."""
    fields = {
        field.name: field.default
        for section in (ModelSettings, CacheSettings, SchedulerSettings, ParallelSettings)
        for field in msgspec.structs.fields(section)
        if field.name != "path"
    }
    seen: list[EngineConfig] = []

    def command(config: EngineConfig, port: int = 1) -> None:
        seen.append(config)

    run = with_engine_options(command)
    parameters = inspect.signature(run).parameters
    assert {name: parameters[name].default for name in fields} == fields
    run(model="m", port=2, **fields)
    assert seen == [EngineConfig(model=ModelSettings(path="m"))]


def test_options_reach_their_settings() -> None:
    config = engine_config("m", {"max_model_len": 5, "block_size": 32, "max_num_seqs": 3})
    assert config.model.max_model_len == 5
    assert config.cache.block_size == 32
    assert config.scheduler.max_num_seqs == 3
