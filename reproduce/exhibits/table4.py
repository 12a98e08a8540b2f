"""Table 4: the buffer ablation: which of inputs and weights may be approximated, k = 1.

The four configurations are four methods: what a backward does not find in a buffer, it approximates, an input by
reconstruction, the forward's weights by the current ones. The paper's values are not at hand, only what they are said
to show, so what is compared is ours: every configuration with the one that keeps both, and the two halves with each
other. In RevNet-18 only stage 1 ever works on a reconstructed input; the scale `small` therefore also has the chain of
8 blocks, in which all inner stages do.
"""

from collections.abc import Iterator

from petra_core import methods
from reproduce.exhibits._exhibit import Claim, Exhibit, Sentence, Shown, claims, claims_finding
from reproduce.grids.plans.table4 import CONFIGURATIONS
from reproduce.published import Mark
from reproduce.records.frames import Sheet
from reproduce.show import facets, statements
from reproduce.show.compare import family_note, judge, means, points
from reproduce.show.content import estimate, short_title
from reproduce.show.facets import facet
from reproduce.show.statements import combine, is_below
from reproduce.show.tables import DIFFERENCES, judged, mean, published, table, words

STATEMENT = statements.of("table4")
FULL, INPUTS, WEIGHTS, PETRA = (
    m.name for m in (methods.DELAYED_GRADIENTS, methods.APPROXIMATE_INPUTS, methods.DSP, methods.PETRA)
)
INTRODUCTION = (
    "Accuracy with k = 1 under the four combinations of buffered inputs and buffered weights, for stages that can be "
    "inverted; the others keep their inputs in every row. The published values (CIFAR-100, RevNet-18, 34 and 50) are "
    f"unknown; stated is: {STATEMENT.quoted}. What separates the halves is the reconstruction of inputs: in RevNet-18 "
    "only stage 1 ever evaluates its residual on a reconstructed input, in RevNet-34 and 50 and in a chain more do."
)


def each(sheet: Sheet) -> Iterator[Shown]:
    """The ablation, and what it says to the paper's statement."""
    best, last = (means(sheet.runs, name, ["network", "method"]) for name in ("best_test_accuracy", "test_accuracy"))
    networks = list(dict.fromkeys(network for network, _ in last))
    less = judge(
        {
            (network, method.name): last[network, method.name] - last[network, FULL]
            for network in networks
            for method in CONFIGURATIONS.values()
            if method.name != FULL
        }
    )
    key, recipe = f"table4-{sheet.key}-{sheet.dataset}", sheet.described(width=False)
    first = networks[0]
    yield Sentence(
        f"{first}: reconstructed inputs cost {points(last[first, INPUTS] - last[first, FULL])}, current weights "
        f"{points(last[first, WEIGHTS] - last[first, FULL])}, both {points(last[first, PETRA] - last[first, FULL])} "
        "points of accuracy (k = 1)."
    )
    unknown = published("published, %", lambda _: ("unknown", Mark.UNKNOWN))
    yield table(
        key=key,
        caption=f"Top-1 accuracy in percent by what is buffered ({recipe}).",
        rows=[(n, kept, method) for n in networks for kept, method in CONFIGURATIONS.items()],
        fields=[
            words("network", lambda row: row[0]),
            words("method", lambda row: row[2].title),
            words("inputs", lambda row: "kept" if row[1][0] else "reconstructed"),
            words("weights", lambda row: "kept" if row[1][1] else "current"),
            *([unknown] if (sheet.scale, sheet.dataset) == ("paper", "cifar100") else []),
            mean("best epoch, %", lambda row: best[row[0], row[2].name]),
            mean("last epoch, %", lambda row: last[row[0], row[2].name]),
            judged("to both kept", lambda row: less.get((row[0], row[2].name))),
        ],
        notes=(
            "Mean ± half the 95 % interval (number of seeds); best epoch: of those after the last drop. "
            f"{DIFFERENCES} To both kept: last epoch less that of delayed gradients, which buffer inputs and weights.",
            family_note(less.values()),
        ),
        grouped=True,
    )
    if not sheet.done.empty:
        yield facet(
            sheet.done.assign(
                title=sheet.done["method"].map({m.name: short_title(m) for m in CONFIGURATIONS.values()})
            ),
            [facets.rows([short_title(method) for method in CONFIGURATIONS.values()])],
            key=key,
            title="Accuracy by what is buffered",
            caption=f"Accuracy by what is buffered ({recipe}). Dot: a seed; bar: mean.",
            x="test_accuracy",
            y="title",
            col="network",
            xlabel="test accuracy, %",
            share=(False, True),
            height=1.9,
            legend="",
        )
    halves = {network: (last[network, INPUTS] - last[network, WEIGHTS]).estimate for network in networks}
    found = [
        Claim(
            network,
            {
                "inputs reconstructed": less[network, INPUTS].difference,
                "weights current": less[network, WEIGHTS].difference,
                "the one less the other": halves[network],
            },
            combine([is_below(halves[network])]),
        )
        for network in networks
    ]
    yield from claims(
        STATEMENT,
        found,
        key=key,
        subject="network",
        caption=recipe,
        note="Points of accuracy to the configuration that keeps both, paired over seeds. Agree: reconstructing the "
        "inputs is shown to lose more than using current weights, the interval of the difference being below 0; "
        "disagree: it is above 0, or around 0 and within the margin.",
    )
    said = [
        (f"{claim.subject}: our data {claim.outcome.verb} ({estimate(half, 2, sign=True).text} points)", claim)
        for claim in found
        if (half := halves[claim.subject]) is not None
    ]
    yield from claims_finding(f"Table 4: {recipe}", sheet.scale, STATEMENT, said)


EXHIBIT = Exhibit("table4", "Table 4: buffer ablation", INTRODUCTION, each)
