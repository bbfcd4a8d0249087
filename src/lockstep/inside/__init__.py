"""What runs inside every process of the job: it counts collectives and marks boundaries.

The probe issues no collective, never synchronises a device and shares no lock with the job. The main thread
of the job only notes counts at a boundary (one call into torch's flight recorder, tens of microseconds); a
thread of the probe reads the records and does all writing. When something in the probe fails the job goes on
and the ledger says so.

Imports torch and the standard library only. The job's processes reach it through
`lockstep.stacks.swift.plugins.lockstep_job` (ms-swift's `--external_plugins`) and `lockstep.stacks.swift.inside.vllm_plugin` (vLLM's
`general_plugins` entry point).
"""
