"""A config that another process reads: the same result, without what it does not need."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from tests.engine.tiny_models import COMMON, FAMILY_CONFIGS

from octavo_engine.loading.cache_variable import CACHE_VARIABLE
from octavo_engine.loading.config_file import parse_config
from octavo_engine.loading.config_process import HIDDEN, Answer, Question
from octavo_engine.models.families import FAMILIES, build_model_config

FIXTURES = Path(__file__).parents[1] / "fixtures"
ALL_IN_ONE_PROCESS = """
import sys, msgspec
from octavo_engine.loading.config_process import Question, answer, hide
hide()
questions = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Question])
sys.stdout.buffer.write(msgspec.json.encode([answer(question) for question in questions]))
"""
STARTS = """
import json, sys
from pathlib import Path
from octavo_engine.loading.config_ahead import reading_ahead
folder = Path(sys.argv[1])
outcomes = []
for entries, is_loaded, program in json.loads(sys.argv[2]):
    (folder / "config.json").write_text(json.dumps(entries))
    sys.executable = program or sys.executable
    with reading_ahead(str(folder)) as reading:
        early = [name for name in ("torch", "transformers") if name in sys.modules]
        outcome = None
        if is_loaded:
            from octavo_engine.loading.model_files import open_model
            try:
                outcome = open_model(str(folder), "dummy").model_config(reading).hidden_size
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
        imported = "transformers" in sys.modules
        outcomes.append([reading is not None, early, outcome, imported])
print(json.dumps(outcomes))
"""


def starts(folder: Path, *wanted: tuple[dict[str, Any], bool, str]) -> list[list[Any]]:
    """In one process after the other's config: (entries, whether they are loaded, the program to
    read them) -> [whether one was started, what this process had imported by then, outcome, whether
    it has imported transformers]."""
    jobs = [({**COMMON, **entries}, *others) for entries, *others in wanted]
    done = subprocess.run(
        [sys.executable, "-c", STARTS, str(folder), json.dumps(jobs)],
        env=os.environ | {CACHE_VARIABLE: str(folder / "cache")},
        stdout=subprocess.PIPE,
        check=True,
    )
    outcomes: list[list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


def configs() -> list[dict[str, Any]]:
    tiny = [
        {**COMMON, **entries, "model_type": name.partition("-")[0], "dtype": "bfloat16"}
        for name, entries in FAMILY_CONFIGS.items()
    ]
    real = [json.loads(path.read_text()) for path in sorted(FIXTURES.glob("*/config.json"))]
    return tiny + real


def test_every_family_is_read_as_with_torch_there() -> None:
    raws = configs()
    assert {raw["model_type"] for raw in raws} >= set(FAMILIES)
    questions = msgspec.json.encode([Question(raw, "a file") for raw in raws])
    command = [sys.executable, "-c", ALL_IN_ONE_PROCESS]
    done = subprocess.run(command, input=questions, stdout=subprocess.PIPE, check=True)
    for raw, found in zip(raws, msgspec.json.decode(done.stdout, type=list[Answer]), strict=True):
        expected = build_model_config(parse_config(raw, "a file"))
        assert found == Answer(expected), raw


def test_the_process_imports_none_of_what_it_hides(tmp_path: Path) -> None:
    """Where they are installed: here a package of each name that tells when it is imported."""
    told = tmp_path / "imported"
    for name in HIDDEN:
        package = tmp_path / "site" / name
        package.mkdir(parents=True)
        code = f"open({str(told)!r}, 'a').write('{name} ')\n__version__ = '9.9'\n"
        (package / "__init__.py").write_text(code)
    paths = [str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "octavo_engine.loading.config_process"],
        input=msgspec.json.encode(Question({**COMMON, "model_type": "llama"}, "a file")),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        check=True,
    )
    assert msgspec.json.decode(done.stdout, type=Answer).config is not None
    assert not told.exists(), told.read_text()
    assert done.stderr == b""


def test_a_start_takes_what_the_process_says(tmp_path: Path) -> None:
    good, bad = {"model_type": "qwen3"}, {"model_type": "llama", "sliding_window": 24}
    opt, unknown = {"model_type": "opt"}, {"model_type": "no-such-type"}
    others = starts(tmp_path, (opt, False, ""), (unknown, False, ""))
    assert others == [[False, [], None, False]] * 2, "not of the table: left to this process"
    cold, warm, refused, refused_here, failed = starts(
        tmp_path,
        (good, True, ""),
        (good, True, ""),
        (bad, True, ""),
        (bad, True, "/bin/false"),
        ({**good, "hidden_size": 32}, True, "/bin/false"),
    )
    size = COMMON["hidden_size"]
    assert cold == [True, [], size, False]
    assert warm == [False, ["torch"], size, False], "from the cache"
    assert refused == [True, ["torch"], refused_here[2], False]
    assert refused[2].startswith("CheckpointError: ")
    assert "'sliding_window' = 24" in refused[2]
    assert refused_here[3], "a process that fails is no news: it is read here"
    assert failed == [False, ["torch", "transformers"], 32, True]
