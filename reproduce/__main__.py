"""`python -m reproduce`; installed, the same is the command `petra`."""


def run(program: str = "petra") -> None:
    """Run the command line, under the name that its help shows."""
    from reproduce.commands.cli import main
    from reproduce.distributed.launch import exit_without_shutdown

    with exit_without_shutdown():
        main(prog_name=program)


if __name__ == "__main__":
    run("python -m reproduce")
