"""The public message form: what may travel, and what is refused with a remedy."""

from __future__ import annotations

import pytest

from tidegate_protocol import form
from tidegate_protocol.errors import InvalidMessage


def test_bodies_up_to_the_limit_pass() -> None:
    assert form.check_body(b"") == b""
    assert form.check_body(b"x" * 10, limit_bytes=10) == b"x" * 10
    assert len(form.check_body(b"x" * form.BODY_BYTES_DEFAULT)) == form.BODY_BYTES_DEFAULT


def test_a_body_over_the_limit_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="over the limit of 10 bytes") as caught:
        form.check_body(b"x" * 11, limit_bytes=10)
    assert caught.value.field == "body"


@pytest.mark.parametrize("body", ["text", None, 7, {"a": 1}])
def test_a_body_that_is_not_bytes_is_refused(body: object) -> None:
    with pytest.raises(InvalidMessage, match="encode it first"):
        form.check_body(body)  # type: ignore[arg-type]


def test_attributes_of_every_legal_type_pass() -> None:
    attributes: form.Attributes = {
        "text": "höhe",
        "whole": -(2**63),
        "largest": 2**63 - 1,
        "real": 1.5,
        "flag": True,
        "n" * form.ATTRIBUTE_NAME_BYTES_MAX: "v" * form.ATTRIBUTE_TEXT_BYTES_MAX,
    }
    assert form.check_attributes(attributes) is attributes
    assert form.check_attributes({}) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", 1),
        (7, 1),
        ("n" * (form.ATTRIBUTE_NAME_BYTES_MAX + 1), 1),
        ("é" * (form.ATTRIBUTE_NAME_BYTES_MAX // 2 + 1), 1),
        ("\ud800", 1),
        ("tidegate-mine", 1),
        ("x-death", 1),
        ("CC", "queue"),
        ("BCC", "queue"),
        ("level", None),
        ("level", b"raw"),
        ("level", [1]),
        ("level", {"a": 1}),
        ("level", object()),
        ("level", 1j),
        ("level", 2**63),
        ("level", -(2**63) - 1),
        ("level", "v" * (form.ATTRIBUTE_TEXT_BYTES_MAX + 1)),
        ("level", "\ud800"),
    ],
)
def test_an_attribute_that_cannot_travel_is_refused(name: object, value: object) -> None:
    with pytest.raises(InvalidMessage) as caught:
        form.check_attributes({name: value})  # type: ignore[dict-item]
    assert caught.value.field == f"attributes[{name!r}]"
    assert caught.value.remedy


def test_too_many_attributes_are_refused() -> None:
    assert form.check_attributes({f"a{i}": i for i in range(form.ATTRIBUTES_MAX)})
    with pytest.raises(InvalidMessage, match="too many"):
        form.check_attributes({f"a{i}": i for i in range(form.ATTRIBUTES_MAX + 1)})


def test_attributes_that_would_not_fit_one_frame_are_refused() -> None:
    wide = "v" * form.ATTRIBUTE_TEXT_BYTES_MAX
    assert form.check_attributes({f"a{i}": wide for i in range(7)})
    with pytest.raises(InvalidMessage, match="too large"):
        form.check_attributes({f"a{i}": wide for i in range(8)})


def test_the_form_is_pinned() -> None:
    assert form.PUBLISHED_HEADER == "tidegate-published-us"
    assert form.PUBLISHED_HEADER.startswith(form.RESERVED_PREFIXES)
