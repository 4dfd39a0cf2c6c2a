"""What runs inside the sandboxed process: the standard library alone, imported without the rest of the package."""
