"""Commits that records name and that are not in this repository: nobody can look up the code of these runs.

The runs stay in the tables, marked, and stay out of the primary comparisons until they have been made again. A test
compares this list with the repository's history.
"""

#: By the commit, what is known of the code all the same.
LOST = {
    "d77e228251a9874eba99ead3283650d7ba897d67": (
        "the first six epochs of its runs of 9 epochs equal those of the runs of 27 epochs, to the last printed digit"
    ),
    "575165db21f8ae811c8f4e0c64fb9ac544d5fc9e": "",
    "8d0509e663610eee594c24070339115091b4eb46": (
        "its runs of gradient quality equal training runs of known commits, to the last printed digit"
    ),
}
