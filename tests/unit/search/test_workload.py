"""Requests of several shapes: which are measured, and what follows for the others."""

import numpy as np
import pytest

from search.workload import MAX_TABLES, RequestShapes, request_shapes


def of_lengths(*lengths: int) -> RequestShapes:
    found = request_shapes([(("ids", (length,)), ("mask", (length,))) for length in lengths])
    assert found is not None
    return found


def test_shapes_are_numbered_by_their_length_and_keep_their_order() -> None:
    shapes = of_lengths(30, 10, 10, 20)
    assert (shapes.turns, shapes.sizes) == ((2, 0, 0, 1), (10, 20, 30))
    assert shapes.profiled == (0, 1, 2)
    assert shapes.requests_of(0) == (1, 2)
    assert shapes.numbered().tolist() == [[2, 0, 0, 1], [2, 0, 0, 1]]


def test_the_longest_run_goes_on_where_the_turn_begins_again() -> None:
    assert of_lengths(10, 20, 20, 10).longest_run == 2
    assert of_lengths(10, 20, 20, 10, 10).longest_run == 3
    assert of_lengths(10, 20).longest_run == 1


def test_of_many_lengths_those_are_measured_that_take_the_time_and_the_others_lie_between() -> None:
    """The lengths add up to 550: a third of that is reached at 60, two thirds at 90."""
    shapes = of_lengths(*range(10, 101, 10))
    assert [shapes.sizes[shape] for shape in shapes.profiled] == [10, 60, 90, 100]
    tables = shapes.tables([np.full((3, 2), seconds) for seconds in (1.0, 6.0, 12.0, 11.0)])
    assert tables.shape == (10, 3, 2)
    assert tables[:, 1, 1] == pytest.approx([1, 2, 3, 4, 5, 6, 8, 10, 12, 11])
    assert shapes.mean([1.0, 6.0, 12.0, 11.0]) == pytest.approx(6.2)


def test_one_long_request_among_short_ones_is_measured_once() -> None:
    shapes = of_lengths(1, 2, 3, 4, 5, 1000)
    assert [shapes.sizes[shape] for shape in shapes.profiled] == [1, 1000]
    assert shapes.tables([np.array(0.0), np.array(999.0)]).tolist() == pytest.approx([0, 1, 2, 3, 4, 999])


def test_lengths_without_end_share_tables_and_make_no_common_batch() -> None:
    lengths = np.random.default_rng(1).integers(1, 512, 3000).tolist()
    shapes = of_lengths(*lengths)
    straight = [np.array([[float(shapes.sizes[shape])]]) for shape in shapes.profiled]
    tables, turns = shapes.tables(straight), shapes.numbered()
    assert len(tables) == MAX_TABLES
    assert len(set(turns[0].tolist())) == len(set(lengths))
    told = tables[turns[1], 0, 0]
    assert told.mean() == pytest.approx(np.mean(lengths))
    assert np.abs(told - lengths).max() <= 512 / MAX_TABLES


def test_a_few_shapes_of_any_kind_are_measured_each() -> None:
    wide, high, large = (("image", (3, 4, 8)),), (("image", (3, 8, 4)),), (("image", (3, 8, 8)),)
    shapes = request_shapes([large, wide, high, wide])
    assert (shapes.turns, shapes.profiled) == ((2, 0, 1, 0), (0, 1, 2))
    each = [np.full((2, 2), seconds) for seconds in (1.0, 2.0, 3.0)]
    assert shapes.tables(each)[:, 1, 1].tolist() == [1.0, 2.0, 3.0]


def test_many_shapes_that_differ_in_more_than_a_length_cannot_be_predicted() -> None:
    assert request_shapes([(("image", (3, 8 * n, 8)),) for n in range(1, 7)]) is not None
    assert request_shapes([(("image", (3, 8 * n, 8 * (n % 3 + 1))),) for n in range(1, 7)]) is None
    assert request_shapes([(("a", (n,)), ("b", (2 * n,))) for n in range(1, 7)]) is None
