"""One rank of `test_symmetric_all_reduce` and of the benchmark: python all_reduce_rank.py RANK SIZE

With --times it prints microseconds a sum in a graph of 64, of our kernel and of NCCL's with the
residual and norm as a kernel behind it.
"""

import statistics
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

from octavo_kernels import rms_norm
from octavo_kernels.gpu.all_reduce import SymmetricAllReduce
from octavo_kernels.reference.all_reduce import all_reduce_add_rms_norm

MAX_TOKENS, HIDDEN = 256, 4096
EPS = 1e-5
NUM_IN_GRAPH = 64


def draw(rank: int, num_tokens: int, seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(1000 * seed + rank)
    numbers = torch.randn(num_tokens, HIDDEN, generator=generator, device="cuda")
    return numbers.bfloat16()


def check(sums: SymmetricAllReduce, rank: int, size: int) -> None:
    weight = draw(size, 1, 0)[0]
    for seed, num_tokens in enumerate([1, 256, 3, 64, 1, 1, 100]):
        parts = [draw(other, num_tokens, seed) for other in range(size)]
        residual = draw(size + 1, num_tokens, seed)
        normed, total = sums.add_rms_norm(parts[rank], residual, weight, EPS, 0.0)
        expected = all_reduce_add_rms_norm(parts, residual, weight, EPS, 0.0)
        assert torch.equal(total, expected[1]), f"{num_tokens} tokens: totals differ"
        error = (normed.float() - expected[0].float()).norm() / expected[0].float().norm()
        assert error < 3e-3, f"{num_tokens} tokens: norm errs by {error}"
        assert_same_on_all(normed)
        plain = sums.all_reduce(parts[rank])
        assert torch.equal(plain, sum(part.float() for part in parts).bfloat16())


def assert_same_on_all(x: torch.Tensor) -> None:
    first = x.clone()
    dist.broadcast(first, 0)
    assert torch.equal(first, x), "ranks drift apart"


def check_graphs(sums: SymmetricAllReduce, rank: int) -> None:
    """Two graphs with odd numbers of sums of different sizes, replayed in turn."""
    inputs = {num_tokens: draw(rank, num_tokens, 5) for num_tokens in (1, 32)}
    graphs = {
        num_tokens: captured(lambda x=x: sums.all_reduce(sums.all_reduce(sums.all_reduce(x))))
        for num_tokens, x in inputs.items()
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


def captured(run: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
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


def time_both(sums: SymmetricAllReduce, rank: int) -> None:
    weight = draw(9, 1, 0)[0]
    for num_tokens in (1, 8, 32, 64, 128, 256):
        x, residual = draw(rank, num_tokens, 0), draw(8, num_tokens, 0)

        def ours(x: torch.Tensor = x, residual: torch.Tensor = residual) -> torch.Tensor:
            return sums.add_rms_norm(x, residual, weight, EPS, 0.0)[0]

        def theirs(x: torch.Tensor = x, residual: torch.Tensor = residual) -> torch.Tensor:
            dist.all_reduce(x)
            return rms_norm(x, weight, EPS, residual=residual)[0]

        found = microseconds(ours), microseconds(theirs)
        if rank == 0:
            print(f"{num_tokens:4} tokens: {found[0]:6.2f} us, NCCL and norm {found[1]:6.2f} us")


def main() -> None:
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", rank=rank, world_size=size, device_id=device)
    group = dist.group.WORLD
    assert group is not None
    sums = SymmetricAllReduce(
        group.group_name, rank, size,
        max_tokens=MAX_TOKENS, hidden_size=HIDDEN, dtype=torch.bfloat16, device=device,
    )  # fmt: skip
    check(sums, rank, size)
    check_graphs(sums, rank)
    if "--times" in sys.argv:
        time_both(sums, rank)
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    print("right", flush=True)


if __name__ == "__main__":
    main()
