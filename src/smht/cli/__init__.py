"""The command line: one file a subcommand, heavy imports inside the command."""
