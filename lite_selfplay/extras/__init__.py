"""Optional features, each in a module or folder of its own.

Lower rooms load one only on request, by `lite_selfplay.scan.extra`; none imports another.
"""
