"""Building a grid draws nothing, so it must not wait for what draws."""

import subprocess
import sys

from reproduce.tables.deferred import pd, sns
from tests.conftest import ROOT

GRID = """
import sys
from reproduce import cli, grids
grids.by_name("paper")
print(*sorted({"seaborn", "pandas", "scipy.stats", "sklearn", "torchvision", "jinja2", "ffcv"} & set(sys.modules)))
"""


def test_what_is_deferred_is_the_module():
    import pandas
    import seaborn

    assert pd.DataFrame is pandas.DataFrame
    assert sns.despine is seaborn.despine


def test_a_grid_is_built_without_what_only_the_report_or_the_training_needs():
    said = subprocess.run([sys.executable, "-c", GRID], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.split() == []
