"""List commits that records name but that are not in this repository, so that the code of these runs is unknown.

The runs stay in the tables and are excluded from the primary comparisons until they are repeated. The report names them
under Provenance. A test compares this list with the repository's history.
"""

#: Known facts about the code, by commit.
LOST = {
    "d77e228251a9874eba99ead3283650d7ba897d67": (
        "the first six epochs of its runs of 9 epochs equal those of the runs of 27 epochs, to the last printed digit"
    ),
    "8d0509e663610eee594c24070339115091b4eb46": (
        "its runs of gradient quality equal training runs of known commits, to the last printed digit"
    ),
}
