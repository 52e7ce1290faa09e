"""Independent jobs, and who does them: this process, local worker processes, or a Ray cluster.

A command makes a list of runs and gets their outcomes (`run_jobs`), or has shards made (`make_shards`): answers to the
rows of files, or what a stage computes before its first step. It never knows where.
"""

from compress.run.jobs.job import SUMMARY, Job, JobSet
from compress.run.jobs.outcome import Outcome
from compress.run.jobs.row_work import RowWork
from compress.run.jobs.runner import (
    begin_jobs,
    choose_executor,
    count_places,
    do_jobs,
    hold_cluster,
    require_cluster,
    run_jobs,
)
from compress.run.jobs.shards import make_shards, share_parts

__all__ = [
    "SUMMARY",
    "Job",
    "JobSet",
    "Outcome",
    "RowWork",
    "begin_jobs",
    "choose_executor",
    "count_places",
    "do_jobs",
    "hold_cluster",
    "make_shards",
    "require_cluster",
    "run_jobs",
    "share_parts",
]
