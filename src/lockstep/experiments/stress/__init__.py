"""`lockstep run`: the same job as it is, with the fault, and with the fault and the remedy."""
