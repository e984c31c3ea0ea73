"""The operator's own settings."""

import pytest

from octavo_operator import config
from octavo_operator.errors import ConfigurationError


@pytest.fixture
def load(tmp_path):
    def from_text(text):
        path = tmp_path / "operator.yaml"
        path.write_text(text, encoding="utf-8")
        return config.load(path)

    return from_text


def test_the_engines_image_is_all_that_must_be_said(load):
    loaded = load("engine: {image: 'e:1'}")

    assert loaded.engine.image == "e:1"
    assert loaded.watch_namespaces == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("engine: {}", "engine.image: Field required"),
        ("engine: {image: ''}", "engine.image: String should have at least 1 character"),
        ("engine: {image: e, img: f}", "engine.img: Extra inputs are not permitted"),
        ("engine: {image: e, podOverlay: {kind: Pod}}", "metadata and spec only, not kind"),
        (
            "engine: {image: e, podOverlay: {spec: {containers: [{image: x}]}}}",
            "engine.podOverlay: .* an item of containers has none of name",
        ),
        ("{engine: {image: e}, workers: 0}", "workers: Input should be greater than or equal to 1"),
        (
            "{engine: {image: e}, lease: {durationSeconds: 10}}",
            r"renewDeadlineSeconds \+ retrySeconds \(12\) must be below",
        ),
        ("engine: [", "is not YAML"),
    ],
)
def test_what_cannot_work_is_named(load, text, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        load(text)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"cannot read .*absent\.yaml: No such file"):
        config.load(tmp_path / "absent.yaml")
