"""Inspect users' modules and values, to detect a network that would train differently than with plain autograd.

    modules       before training: rejects stages, parameters and optimizers that the engine cannot train
    evaluations   in the first micro-batches: rejects blocks that are not pure functions (`Inspection`)
    structure     at every update: rejects parameters that were frozen, added or replaced, and hooks on stages; in every
                  step, under methods that keep weights: rejects writes to weights between steps
    ownership     in the first micro-batches: finds outputs and gradients that share memory, which are then copied
    guards        in every step: rejects writes to inputs and gradients; in the first backwards: notices evaluations
    values        in every step: rejects micro-batches of other shapes, and losses and weights that are not finite
    states        when a state is loaded: rejects the state of another pipeline or optimizer
    preflight     all inspections without training (`petra_core.check`)

After the first micro-batches a block has no `BlockInspection`.
"""
