"""Independent runs as jobs, and who runs them: this process, local worker processes, or a Ray cluster.

A command makes a list of jobs and gets their outcomes (`run_jobs`); it never knows where they ran.
"""

from compress.run.jobs.job import Job, JobSet
from compress.run.jobs.outcome import Outcome
from compress.run.jobs.runner import check_jobs, require_executor, run_jobs

__all__ = ["Job", "JobSet", "Outcome", "check_jobs", "require_executor", "run_jobs"]
