"""Rules that compensate for delay, for `Pipeline(..., delay=[...])`.

A stage of a pipelined method receives stale gradients. A rule (`petra_core.update_rule`) acts on the weights of the
forward, the weights of the backward, the gradient or the update. With delay tau, s updates until the backward, learning
rate eta, momentum mu, its buffer m and gradient g:

    PredictedWeights()             forward with w - eta (mu + mu^2 + ... + mu^s) m (FTPipe, Eliad et al. 2021); under
                                   AdamW with w minus its next s steps with zero gradients and a fixed second moment
    PredictedWeights(linear=True)  forward with w - s eta m (SpecTrain, arXiv 1809.02839); under AdamW with
                                   w - s eta m^/(sqrt(v^) + eps) (XPipe)
    Rate(T)                        eta / tau^(1 - t/T), phased out over T updates (PipeMare's first rule,
                                   arXiv 1910.05124)
    Average(D)                     backward with w - tau delta, delta an average of past updates (PipeMare's second;
                                   unverified)
    GapAware()                     g / (1 + |w - w_forward| / C), C the typical size of a step (arXiv 1909.10802)
    Spike()                        step eta (a m + b g), a = mu^tau, b = (1 - mu^tau)/(1 - mu) (arXiv 2003.11666;
                                   unverified)
    Compensation(lambda)           g + lambda g g (w - w_forward), elementwise (DC-ASGD, arXiv 1609.08326; unverified)

If the delay is not 0, Spike updates the weights itself. The optimizer's `step` is not called, so the optimizer's hooks
do not run and torch's schedulers warn.

"Unverified" means that the rule comes from texts and programs that quote the paper, and was not compared with the paper
itself. NAdam with a large momentum (asynchronous Nesterov, arXiv 2505.01099) is an optimizer:
`petra_core.optimizers.nadam`.

This package does not import torch before a rule is bound to an optimizer.
"""

from petra_core.delay.corrections import CORRECTIONS, Average, Compensation, GapAware, Rate, Spike
from petra_core.delay.prediction import PREDICTIONS, PredictedWeights

__all__ = ["CORRECTIONS", "PREDICTIONS", "Average", "Compensation", "GapAware", "PredictedWeights", "Rate", "Spike"]
