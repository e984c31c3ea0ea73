"""`octavo generate`: runs a file of requests in OpenAI's batch format through the server's own
routes, without a socket, so that a line gets the very answer that the endpoint would give.

Killed and started again it goes on with the lines that have no result yet.
"""

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from octavo_engine.errors import EngineDead, RequestError
from octavo_engine.messages import EngineClient
from octavo_engine.offline.generate_files import (
    BatchRequest,
    BatchResponse,
    BatchResult,
    ResultsFile,
    check_requests,
    read_requests,
)
from octavo_engine.offline.progress import GenerationProgress
from octavo_engine.server.app import build_app
from octavo_engine.server.settings import ServerSettings
from octavo_engine.server.state import Loaded, Phase, ServerState
from octavo_engine.text.tokenizer import Tokenizer

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_HEADERS = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class BatchSummary:
    num_requests: int
    num_done_before: int
    """Results that an earlier run had written."""
    num_ok: int
    num_failed: int
    """Results with a status other than 200; their lines say why."""


@dataclass(slots=True)
class _Counts:
    num_ok: int = 0
    num_failed: int = 0


def generate_file(
    engine: EngineClient,
    tokenizer: Tokenizer,
    input_path: Path,
    output_path: Path,
    *,
    served_model_names: tuple[str, ...],
    max_parallel: int | None = None,
    is_progress_shown: bool = True,
) -> BatchSummary:
    """Answers every request of `input_path` that has no result in `output_path` yet.

    Raises RequestError before anything runs when one of the files is not what it should be, and
    EngineDead when the engine stops: what is done then stays done.
    """
    ids = check_requests(input_path)
    with ResultsFile(output_path) as results:
        done = results.recover()
        unknown = done.difference(ids)
        if unknown:
            raise RequestError(
                f"{output_path} holds the result of {min(unknown)!r}, which {input_path} "
                "does not ask for: it belongs to another batch"
            )
        todo = (request for request in read_requests(input_path) if request.custom_id not in done)
        width = max_parallel or 2 * engine.info.max_num_seqs
        with GenerationProgress(
            len(ids), is_shown=is_progress_shown, num_done=len(done)
        ) as progress:
            run = _Run(engine, tokenizer, served_model_names, results, progress)
            counts = asyncio.run(run.all(todo, width))
    return BatchSummary(len(ids), len(done), counts.num_ok, counts.num_failed)


class _Run:
    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        served_model_names: tuple[str, ...],
        results: ResultsFile,
        progress: GenerationProgress,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._settings = ServerSettings(served_model_names=served_model_names)
        self._results = results
        self._progress = progress
        self._num_tokens = engine.stats().generation_tokens_total
        self._counts = _Counts()

    async def all(self, todo: Iterator[BatchRequest], width: int) -> _Counts:
        state = ServerState(self._settings)
        state.loaded, state.phase = Loaded(self._engine, self._tokenizer), Phase.READY
        # What the app did not expect is logged, and a 500 for its line alone.
        transport = httpx.ASGITransport(app=build_app(state), raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url="http://batch", timeout=None)
        try:
            async with client, asyncio.TaskGroup() as group:
                for _ in range(width):
                    group.create_task(self._work(client, todo))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors  # the others fell with the first
        return self._counts

    async def _work(self, client: httpx.AsyncClient, todo: Iterator[BatchRequest]) -> None:
        for request in todo:
            response = await self._answer(client, request)
            self._results.append(response)
            self._note(response)

    async def _answer(self, client: httpx.AsyncClient, request: BatchRequest) -> BatchResult:
        if request.url not in URLS:
            return _refusal(request, 404, f"url {request.url!r} is none of {', '.join(URLS)}")
        if request.body.get("stream"):
            return _refusal(request, 400, "a request of a batch cannot be streamed", "stream")
        content = msgspec.json.encode(request.body)
        while True:
            response = await client.post(request.url, content=content, headers=_HEADERS)
            if self._engine.death is not None:
                raise EngineDead(self._engine.death)
            if response.status_code != 429:
                break
            await asyncio.sleep(float(response.headers.get("Retry-After", "1")))
        return _result(
            request,
            response.status_code,
            response.headers.get("X-Request-Id", ""),
            response.content,
        )

    def _note(self, result: BatchResult) -> None:
        if result.response.status_code == 200:
            self._counts.num_ok += 1
        else:
            self._counts.num_failed += 1
        total = self._engine.stats().generation_tokens_total
        self._progress.add_tokens(total - self._num_tokens)
        self._num_tokens = total
        self._progress.add_done()


def _result(request: BatchRequest, status: int, request_id: str, body: bytes) -> BatchResult:
    return BatchResult(
        id=f"batch_req_{uuid.uuid4().hex}",
        custom_id=request.custom_id,
        response=BatchResponse(status_code=status, request_id=request_id, body=msgspec.Raw(body)),
    )


def _refusal(
    request: BatchRequest, status: int, message: str, param: str | None = None
) -> BatchResult:
    error = {
        "message": message,
        "type": "invalid_request_error",
        "param": param,
        "code": None,
    }
    return _result(request, status, "", msgspec.json.encode({"error": error}))
