"""Event models are found by name, without a list."""

from __future__ import annotations

import pytest

from schemas import registry
from schemas.flight import Flight


def test_model_is_found_by_the_name_of_its_module() -> None:
    assert registry.model("flight") is Flight


def test_names_hold_models_and_not_the_machinery() -> None:
    assert "flight" in registry.names()
    assert not {"event_model", "registry", "columns", "decoding"} & set(registry.names())


@pytest.mark.parametrize("name", ["fligth", "event_model", "registry", "os.path", "", "../flight"])
def test_unknown_name_is_an_error_that_lists_the_known(name: str) -> None:
    with pytest.raises(registry.UnknownSchemaError, match="flight") as caught:
        registry.model(name)
    assert caught.value.name == name
    assert isinstance(caught.value, LookupError)


def test_near_miss_is_pointed_out() -> None:
    with pytest.raises(registry.UnknownSchemaError, match="did you mean 'flight'"):
        registry.model("fligth")
