"""The commands of the command line, one a module; `reproduce.cli` puts them together."""
