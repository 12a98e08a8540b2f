"""Evaluate the published formulas of Table 1: "2(J-j)*FG" at given J, j, k.

Writing the formula a second time as code would compare a measurement with the copy and not with the publication. So the
published text is evaluated: numbers, names, + - * /, parentheses, and products written without a sign.
"""

import ast
import operator
import re
from collections.abc import Mapping

_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """Return the value of a published formula.

    Args:
        formula: Text as published; "3J" and "2(J-j)" are products.
        values: Values of its names, such as {"J": 10, "j": 1, "k": 4}.

    Returns:
        The value.

    Raises:
        ValueError: The text is not such a formula, or a name has no value.

    """
    try:
        tree = ast.parse(re.sub(r"(\d)\s*(?=[A-Za-z(])", r"\1*", formula), mode="eval")
    except SyntaxError as error:
        raise ValueError(f"{formula!r} is not a formula: {error.msg}") from None
    return _value(tree.body, formula, values)


def _value(node: ast.expr, formula: str, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as constant):
            return float(constant)
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.Name(id=name):
            raise ValueError(f"{formula!r} contains {name!r}; there are values for {', '.join(values)}")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            result: float = _OPERATIONS[type(op)](_value(left, formula, values), _value(right, formula, values))
            return result
        case _:
            raise ValueError(f"{formula!r} contains more than numbers, names, + - * / and parentheses")
