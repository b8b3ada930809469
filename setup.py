"""The packages of the wheel; all else stands in pyproject.toml, which cannot find some packages and name another."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["lite_selfplay*"]), "lite_selfplay_cli"])
