"""A scene that a test misspells is no scene."""

from __future__ import annotations

import pytest
from tests.builders import a_job


def test_a_scene_has_no_fields_but_those_of_an_observation() -> None:
    with pytest.raises(TypeError, match=r"no field reprot$"):
        a_job().but(reprot=None)
