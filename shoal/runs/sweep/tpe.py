"""Trials that Optuna asks for, in batches, in a study on disk that resumes."""

from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import ShoalError
from shoal.exchanges.exploration import Prior
from shoal.runs.sweep.axes import Axis, as_setting
from shoal.runs.sweep.plan import Plan, Trial
from shoal.runs.sweep.table import Row


class Study:
    """A study of Optuna's in a sweep's folder; its trials have the numbers of ours.

    Each batch has a seed of its own, so a sweep that resumes asks what it would have asked. Trials that have
    been asked but not told count as bad ones near them (the constant liar of Ginsbourger et al. 2010).
    """

    def __init__(self, plan: Plan, folder: Path):
        try:
            import optuna
            from optuna.storages.journal import JournalFileBackend
        except ImportError:
            raise ShoalError("--tpe needs Optuna; install it with: pip install optuna") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.plan, self.optuna = plan, optuna
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / "study.log")))
        self.study = optuna.create_study(
            study_name="sweep", storage=storage, direction="maximize", load_if_exists=True
        )
        self.size = plan.size(plan.only_group)

    def ask(self, first: int) -> list[Trial]:
        """The batch of trials that begins with this number: those asked before, or new ones."""
        self.study.sampler = self.optuna.samplers.TPESampler(
            seed=self.plan.base.seed + first, constant_liar=True, multivariate=True
        )
        with_numbers = range(first, min(first + self.size, self.plan.num_trials))
        while len(self.study.get_trials(deepcopy=False)) < with_numbers.stop:
            trial = self.study.ask()
            for name, axis in self.plan.axes.items():
                suggest(trial, name, axis)
        known = self.study.get_trials(deepcopy=False)
        return [self.plan.trial(number, self._values(known[number].params)) for number in with_numbers]

    def tell(self, rows: list[Row]) -> None:
        """The scores of a batch; a trial without one has failed."""
        for row in rows:
            known = np.isfinite(row.mean)
            state = self.optuna.trial.TrialState.COMPLETE if known else self.optuna.trial.TrialState.FAIL
            self.study.tell(row.number, row.mean if known else None, state, skip_if_finished=True)

    def _values(self, params: dict[str, Any]) -> dict[str, Any]:
        """What was suggested, as settings."""
        found = {}
        for name, axis in self.plan.axes.items():
            if isinstance(axis, Prior):
                x = 1 - params[name] if axis.kind == "one-minus-log" else params[name]
                found[name] = as_setting(name, x, self.plan.algo)
            else:
                found[name] = axis.values[params[name]]
        return found


def suggest(trial: Any, name: str, axis: Axis) -> None:
    """Have Optuna choose a value of an axis; of discounts 1 - x."""
    if not isinstance(axis, Prior):
        trial.suggest_categorical(name, range(len(axis.values)))
    elif axis.kind == "choice":
        trial.suggest_categorical(name, axis.choices)
    elif axis.kind == "one-minus-log":
        trial.suggest_float(name, 1 - axis.high, 1 - axis.low, log=True)
    else:
        trial.suggest_float(name, axis.low, axis.high, log=axis.kind == "log")
