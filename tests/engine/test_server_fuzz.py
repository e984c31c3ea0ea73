"""schemathesis over the OpenAPI document, against the real CPU engine: no 5xx, no hang, no leak.

Twice: as the document is, mostly refused, and with its values narrowed to what the model can do,
mostly served. `make fuzz-server` runs many more cases (OCTAVO_FUZZ_CASES, OCTAVO_FUZZ_SEED) and
prints how many there were.
"""

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tests.engine.tiny_server import NAME, TinyServer, tiny_server

NUM_CASES = int(os.environ.get("OCTAVO_FUZZ_CASES", "120"))
SEED = os.environ.get("OCTAVO_FUZZ_SEED", "1")
REQUEST_LIMIT_S = 120
NARROWED: dict[str, dict[str, Any]] = {
    "max_tokens": {"type": "integer", "minimum": 1, "maximum": 20},
    "max_completion_tokens": {"type": "integer", "minimum": 1, "maximum": 20},
    "max_output_tokens": {"type": "integer", "minimum": 1, "maximum": 20},
    "min_tokens": {"type": "integer", "minimum": 0, "maximum": 1},
    "n": {"type": "integer", "minimum": 1, "maximum": 4},
    "prompt": {"type": "string", "minLength": 1, "maxLength": 30},
    "content": {"type": "string", "maxLength": 20},
    "logit_bias": {"type": "object", "propertyNames": {"pattern": "^[0-9]{1,2}$"}},
    "stream": {"const": True},
}
"""By the name of the field."""


async def test_fuzzing_finds_no_server_error_and_leaves_the_engine_alive(tmp_path: Path) -> None:
    async with tiny_server(tmp_path, max_model_len=64, max_num_seqs=8) as server:
        document = (await server.http.get("/openapi.json")).json()
        before = await answers_by_route(server)
        findings = [
            await fuzz(server, document, tmp_path / "whole.json", mode="all"),
            await fuzz(server, narrowed(document), tmp_path / "narrowed.json", mode="positive"),
        ]
        counts = await answers_by_route(server) - before
        print(table(counts))
        assert findings == ["", ""]
        assert {status for _, status in counts} <= {"2xx", "3xx", "4xx"}
        assert counts.total() >= NUM_CASES
        for path in ("/v1/chat/completions", "/v1/completions"):
            labels = f'handler="{path}",method="POST",status="2xx"'
            assert await server.metric(f"http_requests_total{{{labels}") > 0, path
        await server.until_idle()
        stats = server.engine.stats()
        assert (stats.num_waiting, stats.kv_blocks_used) == (0, 0)
        assert stats.finished_total["error"] == 0
        answer = await server.http.post("/v1/completions", json={"model": NAME, "prompt": "ab"})
        assert answer.status_code == 200
        assert (await server.http.get("/livez")).status_code == 200


async def answers_by_route(server: TinyServer) -> Counter[tuple[str, str]]:
    """How many were given so far, by route and class of status."""
    counts: Counter[tuple[str, str]] = Counter()
    for family in text_string_to_metric_families((await server.http.get("/metrics")).text):
        for sample in family.samples if family.name == "http_requests" else ():
            if sample.name == "http_requests_total":
                key = sample.labels["handler"], sample.labels["status"]
                counts[key] += int(sample.value)
    return counts


def table(counts: Counter[tuple[str, str]]) -> str:
    statuses = ("2xx", "3xx", "4xx", "5xx")
    rows = [
        [route, *(str(counts[route, status]) for status in statuses)]
        for route in sorted({route for route, _ in counts})
    ]
    totals = [str(sum(int(row[column]) for row in rows)) for column in range(1, 5)]
    lines = [["route", *statuses], *rows, ["all", *totals]]
    text = "\n".join(f"{line[0]:24}" + "".join(f"{cell:>8}" for cell in line[1:]) for line in lines)
    return f"\n{text}\n{counts.total()} requests, seed {SEED}"


async def fuzz(server: TinyServer, document: dict[str, Any], file: Path, mode: str) -> str:
    """Half of the cases, evenly over the operations. Returns what was found, nothing when good."""
    file.write_text(json.dumps(document))
    # The others have no parameters and so one case each.
    num_operations = sum("post" in operations for operations in document["paths"].values())
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", str(file)]
    command += ["--url", server.url, "--phases", "fuzzing", "--mode", mode]
    command += ["--checks", "not_a_server_error", "--request-timeout", str(REQUEST_LIMIT_S)]
    command += ["--max-examples", str(-(-NUM_CASES // 2 // num_operations)), "--seed", SEED]
    command += ["--continue-on-failure", "--no-color", "--suppress-health-check", "all"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return output.decode(errors="replace") if process.returncode else ""


def narrowed(document: dict[str, Any]) -> dict[str, Any]:
    """Only the operations with bodies, their fields as in `NARROWED`."""
    paths = {
        path: operations for path, operations in document["paths"].items() if "post" in operations
    }
    result: dict[str, Any] = json.loads(json.dumps({**document, "paths": paths}))
    bodies = [path["post"]["requestBody"]["content"] for path in result["paths"].values()]
    schemas = [body["application/json"]["schema"] for body in bodies]
    for schema in [*schemas, *result["components"]["schemas"].values()]:
        properties = schema.get("properties", {})
        properties.update({name: NARROWED[name] for name in NARROWED.keys() & properties.keys()})
        if {"role", "content"} <= properties.keys():
            schema["required"] = ["role", "content"]  # a message of almost every role needs both
    return result
