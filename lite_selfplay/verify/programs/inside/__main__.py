"""Starts the zygote without importing its parent packages, whose imports a confined interpreter must not have."""

import itertools
import os
import sys
import types

_INSIDE = "lite_selfplay.verify.programs.inside"

if __name__ == "__main__":
    for name in itertools.accumulate(_INSIDE.split("."), "{}.{}".format):
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [os.path.dirname(os.path.abspath(__file__))]

    from lite_selfplay.verify.programs.inside.zygote import main

    main()
