"""All files of a listing into a folder: parts in parallel, each tried again where it broke off."""

import os
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from octavo_engine.fetch.errors import ChecksumMismatch, DownloadFailed, TemporaryFailure
from octavo_engine.fetch.files import Listing, Repository
from octavo_engine.fetch.manifest import FileRecord
from octavo_engine.fetch.pace import Pace
from octavo_engine.fetch.progress import Progress, gib
from octavo_engine.fetch.retry import Patience
from octavo_engine.fetch.staged import StagedFile


@dataclass
class Transfer:
    repository: Repository
    folder: Path
    tell: Callable[[str], None]
    pace: Pace
    _records: dict[str, FileRecord] = field(default_factory=dict)

    def run(self, listing: Listing) -> tuple[FileRecord, ...]:
        """Raises FetchError; what is whole by then is found again by the next run."""
        staged = [StagedFile(file, self.folder, self.pace.part_bytes) for file in listing.files]
        self._check_room(staged)
        progress = Progress(listing.size_bytes, self.tell)
        progress.add(sum(file.done_bytes for file in staged))
        with ThreadPoolExecutor(self.pace.num_workers) as pool:
            futures: list[Future[None]] = []
            # The largest first, so that no single file is left to a single worker at the end.
            for file in sorted(staged, key=lambda one: -one.file.size_bytes):
                futures += self._submit(pool, file, progress)
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                future.cancel()
        for future in done:
            future.result()
        return tuple(self._records[file.path] for file in listing.files)

    def _submit(
        self, pool: ThreadPoolExecutor, file: StagedFile, progress: Progress
    ) -> list[Future[None]]:
        file.begin()
        missing = file.missing()
        if not missing:
            return [pool.submit(self._check, file, progress)]
        return [pool.submit(self._fetch_part, file, part_idx, progress) for part_idx in missing]

    def _fetch_part(self, file: StagedFile, part_idx: int, progress: Progress) -> None:
        self._read_part(file, part_idx, progress)
        if file.finish_part(part_idx):
            self._check(file, progress)

    def _read_part(self, file: StagedFile, part_idx: int, progress: Progress) -> None:
        position, end = file.bounds(part_idx)
        patience = Patience(self.pace.first_pause_s)
        while position < end:
            try:
                for piece in self.repository.read(file.file, position, end):
                    file.write(position, piece)
                    position += len(piece)
                    progress.add(len(piece))
                    patience.has_moved()
                if position < end:
                    raise TemporaryFailure(f"{file.file.path} broke off at byte {position}")
            except TemporaryFailure as error:
                patience.wait_after(error)

    def _check(self, file: StagedFile, progress: Progress) -> None:
        was_resumed = file.is_resumed
        try:
            sha256 = file.check()
        except ChecksumMismatch:
            if not was_resumed:
                raise
            # A power cut can lose what was written before it, so what we resumed from may be bad.
            progress.add(-file.file.size_bytes)
            file.begin()
            for part_idx in file.missing():
                self._read_part(file, part_idx, progress)
            sha256 = file.check()
        record = FileRecord(file.file.path, file.file.size_bytes, sha256)
        self._records[file.file.path] = record

    def _check_room(self, staged: list[StagedFile]) -> None:
        missing_bytes = sum(file.file.size_bytes - file.done_bytes for file in staged)
        place = os.statvfs(self.folder)
        free_bytes = place.f_bavail * place.f_frsize
        if missing_bytes > free_bytes:
            raise DownloadFailed(
                f"no room: {gib(missing_bytes)} are missing, "
                f"{gib(free_bytes)} are free in the cache"
            )
