"""Finds the package of this checkout when none is installed."""

import importlib.util
import pathlib
import sys

if importlib.util.find_spec("tide") is None:
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "python"))
