"""What a run on one machine does without, a module or a folder each.

Nothing below imports one, but for `lite_selfplay.scan.extra` where it is asked for; none imports another.
"""
