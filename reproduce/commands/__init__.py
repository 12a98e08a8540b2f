"""Define the commands of the command line, one per module. `reproduce.commands.cli` combines them."""
