"""One rank of `test_symmetric_all_reduce` and of the benchmark: python all_reduce_rank.py RANK SIZE

With --times it prints microseconds a call in a graph of 64, of our kernels and of NCCL's with what
had to stand around them: the residual and norm behind a sum, zeros for others' ids, an arg-max.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from octavo_engine.parallel.group import rows_or_zeros
from octavo_engine.parallel.symmetric import MAX_SUM_TOKENS, Symmetric, open_symmetric
from octavo_kernels import rms_norm
from octavo_kernels.gpu.all_reduce import Following, LookUp, all_reduce
from octavo_kernels.gpu.gather import all_gather, first_of_ranks, largest
from octavo_kernels.gpu.mailbox import Mailbox, open_mailbox
from octavo_kernels.gpu.word_sum import word_all_reduce
from octavo_kernels.reference.all_reduce import all_reduce_add_rms_norm

HIDDEN, VOCABULARY_SHARE = 4096, 64128
EPS = 1e-5
NUM_IN_GRAPH = 64
T = TypeVar("T")
Pairs = Iterator[tuple[str, Callable[[], torch.Tensor], Callable[[], torch.Tensor]]]
"""Name, ours, what stood there before."""


def draw(rank: int, num_tokens: int, seed: int, width: int = HIDDEN) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(1000 * seed + rank)
    numbers = torch.randn(num_tokens, width, generator=generator, device="cuda")
    return numbers.bfloat16()


Sum = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""As `all_reduce`, without the mailbox."""


def by(kernel: Sum, box: Mailbox) -> Sum:
    def summed(
        x: torch.Tensor, following: Following | None = None, look_up: LookUp | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return kernel(x, box, following, look_up)

    return summed


def check(summed: Sum, rank: int, size: int) -> None:
    weight = draw(size, 1, 0)[0]
    for seed, num_tokens in enumerate([1, 256, 3, 64, 1, 1, 100]):
        parts = [draw(other, num_tokens, seed) for other in range(size)]
        residual = draw(size + 1, num_tokens, seed)
        normed, total = summed(parts[rank], Following(residual, weight, EPS, 0.0))
        expected = all_reduce_add_rms_norm(parts, residual, weight, EPS, 0.0)
        assert torch.equal(total, expected[1]), f"{num_tokens} tokens: totals differ"
        error = (normed.float() - expected[0].float()).norm() / expected[0].float().norm()
        assert error < 3e-3, f"{num_tokens} tokens: norm errs by {error}"
        assert_same_on_all(normed)
        plain = summed(parts[rank])[1]
        assert torch.equal(plain, sum(part.float() for part in parts).bfloat16())


def assert_same_on_all(x: torch.Tensor) -> None:
    first = x.clone()
    dist.broadcast(first, 0)
    assert torch.equal(first, x), "ranks drift apart"


def check_graphs(summed: Sum, rank: int) -> None:
    """Two graphs with odd numbers of sums of different sizes, replayed in turn."""
    inputs = {num_tokens: draw(rank, num_tokens, 5) for num_tokens in (1, 32)}
    graphs = {
        num_tokens: captured(lambda x=x: three_sums(x, summed)) for num_tokens, x in inputs.items()
    }
    for num_tokens in (1, 32, 32, 1, 1, 32):
        graph, output = graphs[num_tokens]
        output.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        size = dist.get_world_size()
        exact = sum(draw(other, num_tokens, 5).float() for other in range(size)) * size * size
        error = (output.float() - exact).norm() / exact.norm()
        assert error < 1e-2, f"{num_tokens} tokens: {error}"
        assert_same_on_all(output)


def three_sums(x: torch.Tensor, summed: Sum) -> torch.Tensor:
    for _ in range(3):
        x = summed(x)[1]
    return x


def check_exchanges(shared: Symmetric, rank: int, size: int) -> None:
    """What is no sum, an odd number of each in a graph, whose inputs change from replay to replay.

    Nothing makes ranks wait for each other between replays.
    """
    for num_rows in (1, 7, 32):
        logits = draw(rank, num_rows, 6, VOCABULARY_SHARE)
        table, wanted = draw(rank, 500, 7), torch.zeros(num_rows, dtype=torch.int64, device="cuda")
        numbers = torch.zeros(num_rows, dtype=torch.int64, device="cuda")

        def exchanges(
            logits: torch.Tensor = logits,
            table: torch.Tensor = table,
            wanted: torch.Tensor = wanted,
            numbers: torch.Tensor = numbers,
        ) -> tuple[torch.Tensor, ...]:
            rows = all_reduce(table, shared.sums, look_up=LookUp(wanted, rank * len(table)))[1]
            whole, chosen = all_gather(logits, shared.rows), largest(logits, shared.words)
            told = numbers.clone()
            first_of_ranks(told, shared.words)
            again = numbers + 1
            first_of_ranks(again, shared.words)
            return rows, whole, chosen, told, again

        graph, outputs = captured(exchanges)
        tables = torch.cat([draw(other, 500, 7) for other in range(size)])
        ids = torch.Generator("cuda").manual_seed(8)
        for seed in range(40):
            logits.copy_(draw(rank, num_rows, seed, VOCABULARY_SHARE))
            wanted.random_(len(tables), generator=ids)
            numbers.fill_(1000 * seed + rank)
            graph.replay()
            parts = [draw(other, num_rows, seed, VOCABULARY_SHARE) for other in range(size)]
            whole = torch.cat(parts, dim=1)
            rows, gathered, chosen, told, again = outputs
            assert torch.equal(rows, tables[wanted])
            assert torch.equal(gathered, whole)
            assert torch.equal(chosen, whole.float().argmax(dim=1))
            assert told.eq(1000 * seed).all()
            assert again.eq(1000 * seed + 1).all()


def captured(run: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        output = run()
    return graph, output


def microseconds(run: Callable[[], torch.Tensor]) -> float:
    """A call, in a graph of many."""

    def many() -> torch.Tensor:
        for _ in range(NUM_IN_GRAPH):
            result = run()
        return result

    graph, _ = captured(many)
    times = []
    for _ in range(15):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The first replay takes up the difference between the processes.
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / NUM_IN_GRAPH * 1e3)
    return statistics.median(times)


def sums_to_time(shared: Symmetric, ways: dict[str, Sum], rank: int, num_tokens: int) -> Pairs:
    weight = draw(9, 1, 0)[0]
    x, residual = draw(rank, num_tokens, 0), draw(8, num_tokens, 0)
    table = draw(rank, 64128, 1)
    wanted = torch.arange(num_tokens, device="cuda") * 501
    following, look_up = Following(residual, weight, EPS, 0.0), LookUp(wanted, rank * len(table))

    def plain() -> torch.Tensor:
        dist.all_reduce(x)
        return rms_norm(x, weight, EPS, residual=residual)[0]

    def plain_rows() -> torch.Tensor:
        return all_reduce(rows_or_zeros(wanted, table, rank), shared.sums)[1]

    for name, summed in ways.items():
        yield f"sum and norm, {name}", partial(first_of, summed, x, following), plain
        yield f"embedding, {name}", partial(first_of, summed, table, look_up=look_up), plain_rows


def first_of(summed: Sum, *args: Any, **kwargs: Any) -> torch.Tensor:
    return summed(*args, **kwargs)[0]


def exchanges_to_time(shared: Symmetric, rank: int, num_rows: int) -> Pairs:
    logits = draw(rank, num_rows, 0, VOCABULARY_SHARE)
    ids = torch.zeros(num_rows, dtype=torch.int64, device="cuda")

    def gathered() -> torch.Tensor:
        parts = logits.new_empty(dist.get_world_size(), *logits.shape)
        dist.all_gather_into_tensor(parts, logits)
        return parts.transpose(0, 1).reshape(num_rows, -1)

    def first() -> torch.Tensor:
        first_of_ranks(ids, shared.words)
        return ids

    def broadcast() -> torch.Tensor:
        dist.broadcast(ids, 0)
        return ids

    def chosen() -> torch.Tensor:
        ids = gathered().argmax(dim=1)
        dist.broadcast(ids, 0)
        return ids

    yield "broadcast", first, broadcast
    yield "gather, arg-max, broadcast", lambda: largest(logits, shared.words), chosen
    if shared.can_gather(logits):
        yield "gather", lambda: all_gather(logits, shared.rows), gathered


def print_times(shared: Symmetric, ways: dict[str, Sum], rank: int) -> None:
    for num_rows in (1, 32, 64, 128, 256):
        sums = sums_to_time(shared, ways, rank, num_rows)
        for name, ours, theirs in chain(sums, exchanges_to_time(shared, rank, num_rows)):
            found = microseconds(ours), microseconds(theirs)
            if rank == 0:
                print(f"{num_rows:4} {name:28} {found[0]:7.2f} us, before {found[1]:7.2f} us")


def main() -> None:
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", rank=rank, world_size=size, device_id=device)
    group = dist.group.WORLD
    assert group is not None
    shared = open_symmetric(group.group_name, rank, size, HIDDEN, torch.bfloat16, device)
    word_box = open_mailbox(
        group.group_name, rank, size,
        max_pieces=MAX_SUM_TOKENS, width=HIDDEN // 2, dtype=torch.int64, device=device,
    )  # fmt: skip
    ways: dict[str, Sum] = {
        "flags": by(all_reduce, shared.sums),
        "words": by(word_all_reduce, word_box),
    }
    for summed in ways.values():
        check(summed, rank, size)
        check_graphs(summed, rank)
    check_exchanges(shared, rank, size)
    if "--times" in sys.argv:
        print_times(shared, ways, rank)
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    print("right", flush=True)


if __name__ == "__main__":
    main()
