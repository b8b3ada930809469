"""Starts the zygote without importing its parent packages, whose imports a confined interpreter must not have."""

import os
import sys
import types

_INSIDE = "lite_selfplay.verify.programs.inside"

if __name__ == "__main__":
    parts = _INSIDE.split(".")
    for end in range(1, len(parts) + 1):
        package = types.ModuleType(".".join(parts[:end]))
        package.__path__ = []
        sys.modules[package.__name__] = package
    package.__path__ = [os.path.dirname(os.path.abspath(__file__))]

    from lite_selfplay.verify.programs.inside.zygote import main

    main()
