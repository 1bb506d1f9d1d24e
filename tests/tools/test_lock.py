"""The images can be built for both architectures that nodes and laptops have: every package has a wheel.

From uv.lock alone; nothing is downloaded. requirements/ are its parts (`make check` holds that they are).
"""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename
from tools.release import ROOT

LOCK = tomllib.loads((ROOT / "uv.lock").read_text())
GLIBC = 36
"""Debian bookworm's, 2.36: PYTHON_IMAGE of the Dockerfiles."""


def image_python() -> tuple[int, int]:
    """Both Dockerfiles begin with the same one."""
    files = (ROOT / "Dockerfile", ROOT / "trainer-image" / "Dockerfile")
    pattern = re.compile(r"^ARG PYTHON_IMAGE=.*python:3\.(\d+)-", re.MULTILINE)
    found = {minor for file in files for minor in pattern.findall(file.read_text())}
    (minor,) = found
    return 3, int(minor)


def packages(part: str, machine: str) -> set[tuple[str, str]]:
    """Name and version of what an image of this architecture installs of requirements/PART.txt."""
    where = {
        "python_full_version": "{}.{}.0".format(*image_python()),
        "sys_platform": "linux",
        "platform_machine": machine,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    text = (ROOT / "requirements" / f"{part}.txt").read_text()
    lines = re.findall(r"^([\w.-]+)(?:\[.*?\])?==(\S+)(?: ; (.*?))? \\$", text, re.M)
    return {
        (name, version) for name, version, marker in lines if not marker or Marker(marker).evaluate(where)
    }


def accepted(machine: str) -> set[Tag]:
    """Of wheels, by the images' Python."""
    older = [f"manylinux{name}_{machine}" for name in ("2014", "2010", "1")]
    platforms = [*(f"manylinux_2_{n}_{machine}" for n in range(5, GLIBC + 1)), *older]
    return {
        *cpython_tags(image_python(), platforms=platforms),
        *compatible_tags(image_python(), "cp", platforms),
    }


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("part", ["operator", "trainer", "build"])
def test_every_package_of_an_image_has_a_wheel(part: str, machine: str) -> None:
    wheels = {
        (each["name"], each["version"]): [wheel["url"].rpartition("/")[2] for wheel in each.get("wheels", ())]
        for each in LOCK["package"]
        if "version" in each
    }
    wanted, fitting = packages(part, machine), accepted(machine)
    assert wanted
    assert part != "trainer" or "torch" in {name for name, _ in wanted}
    assert {
        one for one in wanted if not any(parse_wheel_filename(w)[3] & fitting for w in wheels[one])
    } == set()
