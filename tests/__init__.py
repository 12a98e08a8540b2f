"""Share helpers of the tests. Tests are in the folders of the code that they test, one file per module."""
