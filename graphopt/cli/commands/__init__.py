"""The commands, one file each; they are found by walking this package."""
