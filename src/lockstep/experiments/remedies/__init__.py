"""`lockstep remedies`: the job with a late rank under each remedy."""
