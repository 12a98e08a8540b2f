"""The names under which records keep what was measured: for those who measure, and those who only read records."""

__all__ = ["CAUSES", "MEASURES", "OF", "PAIRS"]

#: Of two gradients (`reproduce.measures.gradient_quality`), and which are compared.
MEASURES = ("cosine", "norm_ratio", "relative_error")
PAIRS = (("method", "delayed"), ("method", "end_to_end"), ("delayed", "end_to_end"))

#: What makes a reconstructed input inexact (`reproduce.measures.reconstruction`), and of what the error is.
CAUSES = ("rounding", "rounding_bfloat16", "training")
OF = ("input", "x", "x_tilde")
