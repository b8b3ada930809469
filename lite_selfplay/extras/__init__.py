"""Optional features, each in a module or folder of its own. The rest of the library loads one only on request, by
`lite_selfplay.scan.extra(name)`; none imports another."""
