"""The command line: options, output, and one file a command."""
