"""Overlays and differences of parts of Kubernetes objects."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_operator import merge

names = st.sampled_from(["a", "b", "spec", "env", "containers"])
scalars = st.one_of(st.integers(1, 9), st.sampled_from(["x", "y"]), st.booleans())
keyed_items = st.dictionaries(st.sampled_from(["value", "image"]), scalars)
manifests = st.recursive(
    st.dictionaries(st.sampled_from(["a", "b", "spec"]), scalars),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "spec"]), st.one_of(scalars, inner)),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("base", "over", "wanted"),
    [
        ({"a": 1}, {}, {"a": 1}),
        ({"a": 1}, {"a": 2, "b": 3}, {"a": 2, "b": 3}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 5}}, {"a": {"b": 5, "c": 2}}),
        ({"a": 1, "b": 2}, {"b": None}, {"a": 1}),
        ({"args": ["x"]}, {"args": ["y", "z"]}, {"args": ["y", "z"]}),
        (
            {
                "containers": [
                    {"name": "engine", "image": "i", "env": [{"name": "A", "value": "1"}]}
                ]
            },
            {"containers": [{"name": "engine", "env": [{"name": "B", "value": "2"}]}]},
            {
                "containers": [
                    {
                        "name": "engine",
                        "image": "i",
                        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                    }
                ]
            },
        ),
        (
            {"volumeMounts": [{"mountPath": "/tmp", "name": "tmp"}]},
            {"volumeMounts": [{"mountPath": "/tmp", "name": "other"}]},
            {"volumeMounts": [{"mountPath": "/tmp", "name": "other"}]},
        ),
    ],
)
def test_an_overlay_lies_over_its_base(base, over, wanted):
    assert merge.overlay(base, over) == wanted


def test_an_overlay_leaves_its_base_as_it_is():
    base = {"containers": [{"name": "engine", "image": "i"}]}

    merge.overlay(base, {"containers": [{"name": "engine", "image": "j"}]})

    assert base == {"containers": [{"name": "engine", "image": "i"}]}


def test_an_item_without_its_key_is_refused():
    with pytest.raises(ValueError, match="an item of containers has none of name"):
        merge.overlay({}, {"containers": [{"image": "i"}]})


@given(manifests, manifests)
def test_what_an_overlay_says_holds_afterwards(base, over):
    assert merge.first_difference(over, merge.overlay(base, over)) is None


@given(manifests)
def test_nothing_differs_from_itself(manifest):
    assert merge.first_difference(manifest, manifest) is None


@pytest.mark.parametrize(
    ("wanted", "found", "difference"),
    [
        ({"a": 1}, {"a": 1, "foreign": 2}, None),
        ({"a": 1}, {"a": 2}, ".a: wanted 1, found 2"),
        ({"a": {"b": 1}}, {}, ".a: wanted {'b': 1}, found None"),
        ({"a": {"b": 1}}, {"a": {"b": 3}}, ".a.b: wanted 1, found 3"),
        ({"args": ["x"]}, {"args": ["x", "y"]}, ".args: wanted ['x'], found ['x', 'y']"),
        # The API server leaves empty values out.
        ({"env": [{"name": "A", "value": ""}]}, {"env": [{"name": "A"}]}, None),
        ({"readOnly": False}, {}, None),
        ({"replicas": 0}, {"replicas": 2}, ".replicas: wanted 0, found 2"),
        # It writes quantities its own way.
        ({"limits": {"cpu": "1000m"}}, {"limits": {"cpu": "1"}}, None),
        ({"limits": {"memory": "1024Mi"}}, {"limits": {"memory": "1Gi"}}, None),
        (
            {"requests": {"cpu": "2"}},
            {"requests": {"cpu": "1"}},
            ".requests.cpu: wanted '2', found '1'",
        ),
        # Foreign items of keyed lists are not ours to judge.
        (
            {"containers": [{"name": "engine", "image": "i"}]},
            {"containers": [{"name": "sidecar"}, {"name": "engine", "image": "i"}]},
            None,
        ),
        (
            {"containers": [{"name": "engine", "image": "i"}]},
            {"containers": [{"name": "engine", "image": "j"}]},
            ".containers[engine].image: wanted 'i', found 'j'",
        ),
        ({"ports": [{"containerPort": 80}]}, {"ports": []}, ".ports[80]: missing"),
        # The API server fills in what a claim's template leaves open.
        (
            {"volumeClaimTemplates": [{"metadata": {"name": "m"}, "spec": {"a": 1}}]},
            {"volumeClaimTemplates": [{"metadata": {"name": "m"}, "spec": {"a": 1, "b": 2}}]},
            None,
        ),
        (
            {"volumeClaimTemplates": [{"metadata": {"name": "m"}, "spec": {"a": 1}}]},
            {"volumeClaimTemplates": [{"metadata": {"name": "m"}, "spec": {"a": 2}}]},
            ".volumeClaimTemplates[m].spec.a: wanted 1, found 2",
        ),
        ({"emptyDir": {}}, {"emptyDir": {}}, None),
    ],
)
def test_the_first_difference_is_told(wanted, found, difference):
    assert merge.first_difference(wanted, found) == difference


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", "1"),
        (3, "3"),
        ("500m", "0.5"),
        ("1.5Gi", "1610612736"),
        ("2M", "2000000"),
        ("1e3", "1000"),
        ("2E", "2000000000000000000"),
        ("-1k", "-1000"),
    ],
)
def test_quantities_are_numbers(text, number):
    assert merge.quantity(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "Gi", "1Q", "one", "1.2.3"])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="not a quantity"):
        merge.quantity(text)
