"""Independent jobs, and who does them: this process, local worker processes, or a Ray cluster.

A command makes a list of runs and gets their outcomes (`run_jobs`), or has the shards of files answered
(`answer_shards`); it never knows where.
"""

from compress.run.jobs.job import Job, JobSet
from compress.run.jobs.outcome import Outcome
from compress.run.jobs.row_work import RowWork
from compress.run.jobs.runner import check_jobs, require_executor, run_jobs
from compress.run.jobs.shards import answer_shards

__all__ = ["Job", "JobSet", "Outcome", "RowWork", "answer_shards", "check_jobs", "require_executor", "run_jobs"]
