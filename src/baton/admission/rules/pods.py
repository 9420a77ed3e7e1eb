"""Pods that our scheduler places or that get GPUs from our agent. All other pods pass unchecked."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from baton.admission.findings import Field, Findings, Rule
from baton.admission.rules.gpus import check_gpus
from baton.engine.state.resources import SLOTS
from baton.model.names import JDB_MAX_UNAVAILABLE, JDB_MIN_AVAILABLE
from baton.model.numerals import whole_number

_PERCENT = re.compile(r"[1-9][0-9]?%")

BUDGET_NUMBER = Rule("budget-number", "{field} is {value}: it must be a positive integer, or a percentage such as 50%")
BUDGET_PERCENT = Rule(
    "budget-percent",
    "{field} is {value}: it must be a valid percentage which between 1% ~ 99% (a percentage between 1% and 99%)",
)
BUDGET_BOTH = Rule(
    "budget-both",
    "{field} has {first} and {second}: not allow configure multiple annotations at same time; keep one of them",
)


def check_pod(
    pod: Mapping[str, Any], findings: Findings, scheduler_names: Sequence[str], slots: Sequence[str] = (SLOTS,)
) -> None:
    """Check a new pod, or one that gets an ephemeral container."""
    root = Field("", pod)
    if root["spec"]["schedulerName"].value in scheduler_names:
        _check_budget(root["metadata"]["annotations"], findings)
    check_gpus(root, findings, slots)


def _check_budget(annotations: Field, findings: Findings) -> None:
    """Check how many pods of the job may be missing at a time."""
    budgets = [annotations[key] for key in (JDB_MIN_AVAILABLE, JDB_MAX_UNAVAILABLE) if annotations[key]]
    if len(budgets) == 2:
        findings.add(BUDGET_BOTH, annotations, first=JDB_MIN_AVAILABLE, second=JDB_MAX_UNAVAILABLE)
    for budget in budgets:
        text = budget.text(findings)
        if text.endswith("%"):
            if not _PERCENT.fullmatch(text):
                findings.add(BUDGET_PERCENT, budget)
        elif not whole_number(text):
            findings.add(BUDGET_NUMBER, budget)
