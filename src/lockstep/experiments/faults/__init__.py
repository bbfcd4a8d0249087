"""`lockstep faults`: the job with each fault, and the verdict that each must get."""
