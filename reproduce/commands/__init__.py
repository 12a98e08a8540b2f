"""The commands of the command line, one a module; `reproduce.commands.cli` puts them together."""
