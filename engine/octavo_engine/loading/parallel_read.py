"""Reads safetensors files onto a device by several threads, through pinned buffers on a GPU.

One thread copying from mapped files reaches a tenth of what the page cache gives. Here each thread
reads a piece of a tensor, chunk by chunk through two buffers: while one is on its way the other is
filled. Tensors come out file by file in the order of their names, and only so many are under way as
their bytes allow. Knows no model and no slot.
"""

import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter

import structlog
import torch

from octavo_engine.errors import CheckpointError

log = structlog.get_logger(__name__)

GIB = 2**30
NUM_THREADS = 12
CHUNK_BYTES = 16 * 2**20
CHUNKS_PER_PIECE = 4
"""A thread's task. Threads that hand the interpreter to each other for every chunk came to 2,500
chunks a second on an H200's host, whatever their size."""
IN_FLIGHT_BYTES = 2 * GIB
DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16,
    "I32": torch.int32, "I64": torch.int64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "F16": torch.float16, "BF16": torch.bfloat16,
    "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip
"""By safetensors' names."""


@dataclass(frozen=True)
class StoredTensor:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    """Of its first byte in the file."""

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def stored_tensors(path: Path) -> list[StoredTensor]:
    """By name, so that the parts of a quantised matrix come together: a file orders them by type.
    The safetensors library has found the file to be sound."""
    with path.open("rb") as file:
        header_len = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_len))
    found = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in DTYPES:
            raise CheckpointError(f"{path}: tensor {name!r} is {entry['dtype']}, which is not read")
        first = 8 + header_len + entry["data_offsets"][0]
        found.append(StoredTensor(name, DTYPES[entry["dtype"]], tuple(entry["shape"]), first))
    return sorted(found, key=lambda tensor: tensor.name)


class _Lane:
    """Two buffers of a chunk each, filled in turn; on a GPU with the stream that copies go by."""

    def __init__(self, chunk_bytes: int, device: torch.device) -> None:
        self._chunk_bytes = chunk_bytes
        is_gpu = device.type == "cuda"
        self._buffers = [
            torch.empty(chunk_bytes, dtype=torch.uint8, pin_memory=is_gpu)
            for _ in range(2 if is_gpu else 1)
        ]
        self._views = [memoryview(buffer.numpy().data) for buffer in self._buffers]
        self._stream = torch.cuda.Stream(device) if is_gpu else None
        self._are_free = [torch.cuda.Event() for _ in self._buffers] if is_gpu else []

    def read(self, piece: "_Piece") -> torch.cuda.Event | None:
        """Returns what has passed when the piece's target is filled."""
        if self._stream is None:
            for first, part in self._chunks(piece):
                self._fill(piece, 0, first, len(part))
                part.copy_(self._buffers[0][: len(part)])
            return None
        assert piece.is_free is not None
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(piece.is_free)
            for idx, (first, part) in enumerate(self._chunks(piece)):
                which = idx % 2
                self._are_free[which].synchronize()
                self._fill(piece, which, first, len(part))
                part.copy_(self._buffers[which][: len(part)], non_blocking=True)
                self._are_free[which].record()
            arrived = torch.cuda.Event()
            arrived.record()
        return arrived

    def _chunks(self, piece: "_Piece") -> Iterator[tuple[int, torch.Tensor]]:
        for first in range(0, len(piece.target), self._chunk_bytes):
            yield first, piece.target[first : first + self._chunk_bytes]

    def _fill(self, piece: "_Piece", which: int, first: int, num_bytes: int) -> None:
        _read_whole(piece.path, piece.file, piece.offset + first, self._views[which][:num_bytes])


@dataclass(frozen=True)
class _Piece:
    path: Path
    file: int
    offset: int
    """Of its first byte in the file."""
    target: torch.Tensor
    """Its bytes on the device."""
    is_free: torch.cuda.Event | None
    """On a GPU what has passed when the target may be written."""


@dataclass(frozen=True)
class _Reading:
    """A tensor on its way."""

    stored: StoredTensor
    bytes: torch.Tensor
    pieces: "list[Future[torch.cuda.Event | None]]"


class ParallelReader:
    def __init__(
        self,
        paths: Sequence[Path],
        device: torch.device,
        *,
        num_threads: int = NUM_THREADS,
        chunk_bytes: int = CHUNK_BYTES,
        chunks_per_piece: int = CHUNKS_PER_PIECE,
        in_flight_bytes: int = IN_FLIGHT_BYTES,
    ) -> None:
        self._paths = paths
        self._device = device
        self._num_threads = num_threads
        self._chunk_bytes = chunk_bytes
        self._piece_bytes = chunk_bytes * chunks_per_piece
        self._in_flight_bytes = in_flight_bytes
        self._lanes: SimpleQueue[_Lane] = SimpleQueue()

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor once, on the device, in use by the current stream; raises CheckpointError
        for a file that ends too early."""
        started_s = perf_counter()
        num_bytes = 0
        self._make_lanes()
        with ExitStack() as stack:
            files = [(path, stack.enter_context(path.open("rb")).fileno()) for path in self._paths]
            pool = stack.enter_context(ThreadPoolExecutor(self._num_threads, "octavo-weights"))
            # What is queued when a reader fails is not read any more.
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            under_way: deque[_Reading] = deque()
            for path, file in files:
                for stored in stored_tensors(path):
                    while under_way and self._is_full(under_way, stored):
                        yield self._arrived(under_way.popleft())
                    under_way.append(self._start(pool, path, file, stored))
                    num_bytes += stored.num_bytes
            while under_way:
                yield self._arrived(under_way.popleft())
        seconds = perf_counter() - started_s
        log.info(
            "weights_read",
            gib=f"{num_bytes / GIB:.2f}",
            seconds=f"{seconds:.2f}",
            gib_per_s=f"{num_bytes / GIB / seconds:.1f}",
            num_threads=self._num_threads,
        )

    def _make_lanes(self) -> None:
        """One a thread. Pinning takes time, so small files get few."""
        num_chunks = sum(path.stat().st_size for path in self._paths) // self._chunk_bytes
        for _ in range(min(self._num_threads, max(1, num_chunks // 4))):
            self._lanes.put(_Lane(self._chunk_bytes, self._device))

    def _is_full(self, under_way: deque[_Reading], following: StoredTensor) -> bool:
        num_bytes = sum(reading.stored.num_bytes for reading in under_way)
        return num_bytes + following.num_bytes > self._in_flight_bytes

    def _start(
        self, pool: ThreadPoolExecutor, path: Path, file: int, stored: StoredTensor
    ) -> _Reading:
        target = torch.empty(stored.num_bytes, dtype=torch.uint8, device=self._device)
        is_free = None
        if self._device.type == "cuda":
            # The memory may have been another tensor's that the current stream still copies.
            is_free = torch.cuda.Event()
            is_free.record()
        pieces = [
            pool.submit(
                self._read,
                _Piece(
                    path,
                    file,
                    stored.offset + first,
                    target[first : first + self._piece_bytes],
                    is_free,
                ),
            )
            for first in range(0, stored.num_bytes, self._piece_bytes)
        ]
        return _Reading(stored, target, pieces)

    def _read(self, piece: _Piece) -> torch.cuda.Event | None:
        """In a thread."""
        lane = self._lanes.get()
        try:
            return lane.read(piece)
        finally:
            self._lanes.put(lane)

    def _arrived(self, reading: _Reading) -> tuple[str, torch.Tensor]:
        for piece in reading.pieces:
            arrived = piece.result()
            if arrived is not None:
                torch.cuda.current_stream(self._device).wait_event(arrived)
        stored = reading.stored
        return stored.name, reading.bytes.view(stored.dtype).view(stored.shape)


def _read_whole(path: Path, file: int, offset: int, target: memoryview) -> None:
    num_read = 0
    while num_read < len(target):
        count = os.preadv(file, [target[num_read:]], offset + num_read)
        if count == 0:
            raise CheckpointError(f"{path} ends at byte {offset + num_read}, within a tensor")
        num_read += count
