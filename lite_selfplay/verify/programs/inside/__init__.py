"""The part that runs inside the sandbox, in separate interpreters with only the standard library (see `__main__.py`).

`zygote.py` starts a child for each program, `confinement.py` and `bpf.py` confine it, `roles.py` is its work,
`values.py` encodes the values that are exchanged, `modules.py` serves imports without a file system.
Nothing here may import other parts of the library, since they would be loaded into each of these interpreters.
"""
