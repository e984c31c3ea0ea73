"""Which sizes are captured, and which of them compile kernels of their own."""

import itertools

from octavo_engine.cuda.graphs import CapturedFunction, ends_of_powers, graph_sizes


def test_sizes_rise_to_the_table_and_pad_by_an_eighth_at_most_above_64() -> None:
    sizes = graph_sizes(1000)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == 1000
    for smaller, larger in itertools.pairwise(sizes):
        if smaller >= 64:
            assert larger - smaller - 1 <= smaller / 8


def test_the_ends_stand_for_all_sizes_up_to_each_power_of_two() -> None:
    assert ends_of_powers([1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72]) == [
        1, 2, 4, 8, 16, 24, 32, 40, 64, 72,
    ]  # fmt: skip
    assert ends_of_powers([5]) == [5]


def test_touching_launches_the_smallest_size_or_all_that_differ() -> None:
    launched: list[int] = []
    function = CapturedFunction(launched.append, [1, 2, 4, 8, 16, 24, 32, 40, 48, 64])
    function.touch(only_smallest=True)
    assert launched == [1]
    function.touch()
    assert launched[1:] == [1, 2, 4, 8, 16, 24, 32, 40, 64]


def test_a_rehearsal_warms_in_place_of_the_function() -> None:
    ran: list[int] = []
    rehearsed: list[int] = []
    function = CapturedFunction(ran.append, [1, 2, 4], rehearsed.append)
    function.touch()
    function.warm(num_sizes=2)
    assert (ran, rehearsed) == ([], [1, 2, 4, 4, 2])
    function.run(4)
    assert ran == [4]
