"""Optional features of the library, each in a module or folder of its own. The rest of the library imports such a
module only when its feature is used, by `lite_selfplay.scan.extra(name)`. No feature imports another."""
