"""`python -m reproduce`."""

if __name__ == "__main__":
    from reproduce.commands.cli import main
    from reproduce.teams.launch import leaving_at_once

    with leaving_at_once():
        main(prog_name="python -m reproduce")
