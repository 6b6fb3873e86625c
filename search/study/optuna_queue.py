"""The trials of an Optuna study by number: open, claim, finish and requeue them from several processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from search.space import SearchSpace
from search.study.storage import Storage
from search.study.tasks import reading
from search.trials.trial import Trial

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedQueue:
    """The trials of one study."""

    study: optuna.Study
    storage: Storage

    def open_at(
        self,
        knobs: Mapping[str, int | str],
        space: SearchSpace,
        *,
        waiting: bool,
        attributes: Mapping[str, Any] | None = None,
    ) -> optuna.trial.Trial | None:
        """Open a running trial at a point of the space; with `waiting` queue it instead, and return None."""
        import optuna

        states = optuna.trial.TrialState
        axes = space.axes().items()
        template = optuna.trial.create_trial(
            state=states.WAITING if waiting else states.RUNNING,
            params=dict(knobs),
            distributions={name: optuna.distributions.CategoricalDistribution(values) for name, values in axes},
            user_attrs=dict(attributes or {}),
        )
        with reading(self.study.study_name):  # it may hold trials of another space
            trial_id = self.storage.patient.create_new_trial(self._study_id, template_trial=template)
        return None if waiting else optuna.trial.Trial(self.study, trial_id)

    def id_of(self, number: int) -> int:
        """Return the storage's own key of a trial."""
        return int(self.storage.patient.get_trial_id_from_study_id_trial_number(self._study_id, number))

    def claim(self, number: int) -> bool:
        """Claim a waiting trial; False if another process was quicker."""
        import optuna

        running = optuna.trial.TrialState.RUNNING
        try:
            return bool(self.storage.patient.set_trial_state_values(self.id_of(number), state=running))
        except optuna.exceptions.UpdateFinishedTrialError:
            return False

    def tell(self, number: int, trial: Trial, value: float | None, attributes: Mapping[str, Any]) -> bool:
        """Finish a running trial with its result; False if it no longer belongs to this process."""
        import optuna

        states, values = optuna.trial.TrialState, None if value is None else [value]
        if trial.state in ("complete", "infeasible") and values is not None:
            return self._finish(number, states.COMPLETE, attributes, values)
        if trial.state not in ("pruned", "infeasible"):
            return self._finish(number, states.FAIL, attributes)
        return self._finish(number, states.PRUNED, attributes, values)

    def fail(self, number: int, attributes: Mapping[str, Any] | None = None) -> bool:
        """Finish a running trial without a result; False if it no longer belongs to this process."""
        import optuna

        return self._finish(number, optuna.trial.TrialState.FAIL, attributes or {})

    def opened_again(self, lost: FrozenTrial) -> int:
        """Open a new running trial at the point of a lost one, for its late result; return its number."""
        import optuna

        template = optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING,
            params=lost.params,
            distributions=lost.distributions,
            user_attrs=lost.user_attrs,
        )
        trial_id = self.storage.patient.create_new_trial(self._study_id, template_trial=template)
        return int(self.storage.patient.get_trial(trial_id).number)

    def hand_on(self, number: int) -> None:
        """Queue a trial again that this process does not finish, as Optuna does with a lost one."""

        again = self.storage.direct.get_heartbeat_stale_trial_callback()
        left = self.storage.patient.get_trial(self.id_of(number))
        if again is not None and not left.state.is_finished():
            again(self.study, left)
            self.fail(number)

    def _finish(
        self,
        number: int,
        state: optuna.trial.TrialState,
        attributes: Mapping[str, Any],
        values: list[float] | None = None,
    ) -> bool:
        import optuna

        trial_id = self.id_of(number)
        try:
            for name, value in attributes.items():
                self.storage.patient.set_trial_user_attr(trial_id, name, value)
            if state == optuna.trial.TrialState.PRUNED and values:
                self.storage.patient.set_trial_intermediate_value(trial_id, 0, values[0])
            return bool(self.storage.patient.set_trial_state_values(trial_id, state=state, values=values))
        except optuna.exceptions.UpdateFinishedTrialError:
            return False

    @property
    def _study_id(self) -> int:
        return int(self.storage.patient.get_study_id_from_name(self.study.study_name))
