"""The GPU of a rank when several threads call its runner, without a GPU."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.engine.fake_runner import FakeRunner, Handle
from tests.engine.rank0_child import config_of
from torch._C._distributed_c10d import HashStore

from octavo_engine.batch import Batch, StepResult
from octavo_engine.parallel import rendezvous
from octavo_engine.parallel.rendezvous import build_share
from octavo_engine.parallel.setup import RankSetup
from octavo_engine.progress import silent


class Threads(threading.local):
    """As CUDA has it: each begins with GPU 0."""

    gpu = 0


class NotingRunner(FakeRunner):
    def __init__(self, threads: Threads, gpus: list[int]) -> None:
        super().__init__()
        self._threads, self._gpus = threads, gpus

    def launch(self, batch: Batch) -> Handle:
        self._gpus.append(self._threads.gpu)
        return super().launch(batch)

    def finish_one(self, handle: Handle) -> None:
        self._gpus.append(self._threads.gpu)
        super().finish_one(handle)

    def close(self) -> None:
        self._gpus.append(self._threads.gpu)
        super().close()


@pytest.mark.parametrize("rank", [0, 1])
def test_each_thread_works_on_the_gpu_of_the_rank(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = Threads()
    gpus: list[int] = []

    def set_device(device: torch.device) -> None:
        threads.gpu = device.index

    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    monkeypatch.setattr(rendezvous, "_refuse_other_files", lambda *given: None)
    monkeypatch.setattr(rendezvous, "_make_group", lambda *given: None)
    runner = NotingRunner(threads, gpus)
    monkeypatch.setattr(rendezvous, "build_runner", lambda *given, **named: runner)
    setup = RankSetup(rank=rank, size=2, local_rank=4, address="host0", port=29500)
    built, _ = build_share(config_of(tmp_path, 2), setup, HashStore(), "cuda", None, silent)
    step = on_new_thread(lambda: built.launch(Batch(step_id=0)))
    result: StepResult = on_new_thread(step.result)
    on_new_thread(built.close)
    assert result.step_id == 0
    assert gpus == [4, 4, 4]


def on_new_thread(work):  # type: ignore[no-untyped-def]  # of any result
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(30)
