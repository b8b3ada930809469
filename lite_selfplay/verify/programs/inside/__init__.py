"""What runs inside the sandbox, in interpreters of its own: standard library alone, started by `__main__.py`.

`zygote.py` starts a child for each program, `confinement.py` and `bpf.py` confine it, `child.py` and `roles.py` are
what it does, `values.py` is the language that values travel in, `modules.py` serves imports without a file system.
Nothing here may import anything else of the library, since it would be loaded into every one of these interpreters.
"""
