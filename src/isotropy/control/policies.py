"""Policies for stable-baselines3 that know how a robot is mirrored.

    SAC(SoftSACPolicy, env, policy_kwargs=dict(group="Walker2d", model="rpp"))

Everything but the networks is theirs: saving, loading, callbacks, vectorised environments. `model`

    mlp          their networks, without symmetry
    emlp         hard: the action at the mirrored state is the mirrored action
    rpp          soft: that, beside a free part that starts at zero
    rpp-trivial  the same two matrices with the trivial group: what rpp gains without a symmetry

With ρ the maps of observations s and actions a:

    mean(ρ s) = ρ mean(s)      log std(ρ s) = |ρ| log std(s)      Q(ρ s, ρ a) = Q(s, a)

The squashing tanh is odd and clamps act on single entries, so that both commute with the maps. The
loss of the actor has λ Σ (c F)² of its free parts added, λ = `free_penalty`, in the form of Adam's
weight decay 2 λ c² (Finzi 2023, A.2, has λ = 10⁻⁶ for the policy and none for the critic).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_at_least, check_choice
from isotropy.control.groups import SignedGroup, group_named, joined, still, trivial_group
from isotropy.control.networks import (
    FREE_PENALTY,
    FREE_RATE,
    MODELS,
    LayerMaker,
    group_layers,
    with_rotation,
)
from isotropy.data.robots import Robot

try:
    from gymnasium import spaces
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.sac.policies import SACPolicy
    from stable_baselines3.td3.policies import TD3Policy
except ImportError as error:
    raise CallerError(
        f"policies need stable-baselines3 and gymnasium, and {error.name or 'one of them'} is not "
        "installed; pip install isotropy[rl]"
    ) from error


LARGEST_RATE = 1000.0
"""Of free parts, in the learning rate; the square of it enters a weight decay."""


class RotationFeatures(BaseFeaturesExtractor):
    """Observations with the quaternion of a free root as a matrix (`networks.with_rotation`)."""

    def __init__(self, observation_space: Any, place: int, used: int) -> None:
        super().__init__(observation_space, used + 5)
        self.place, self.used = place, used

    def forward(self, observations: Tensor) -> Tensor:
        return with_rotation(observations, self.place, self.used)


class _GroupPolicy:
    """What the policies share: the arguments, the checks, and the layers.

    group:   a `SignedGroup`, a robot of `data.robots`, or the name of one
    model:   see the module
    symmetric_critic: False for a plain critic beside the policy
    free_rate, free_penalty: c and λ of the free parts
    theirs:  arguments of the policy of stable-baselines3

    Raises CallerError without a group, for spaces that are not vectors of the group's sizes, and
    for use_sde.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        lr_schedule: Any,
        *,
        group: SignedGroup | Robot | str | None = None,
        model: str = "rpp",
        symmetric_critic: bool = True,
        free_rate: float = FREE_RATE,
        free_penalty: float = FREE_PENALTY,
        **theirs: Any,
    ) -> None:
        check_choice(model, MODELS, what="model")
        check_at_least(free_penalty, 0, what="free_penalty")
        if not 0 < free_rate <= LARGEST_RATE:
            raise CallerError(
                f"free_rate: expected above 0 and at most {LARGEST_RATE:g}, got {free_rate:g}"
            )
        self.model, self.symmetric_critic = model, symmetric_critic
        self.free_rate, self.free_penalty = free_rate, free_penalty
        self.group = None if group is None and model == "mlp" else group_named(group)
        if self.group is not None:
            self.group = _checked(self.group, observation_space, action_space)
            if self.group.quaternion is not None:
                theirs["features_extractor_class"] = RotationFeatures
                theirs["features_extractor_kwargs"] = {
                    "place": self.group.quaternion,
                    "used": self.group.observed,
                }
        if model != "mlp" and theirs.get("use_sde"):
            raise CallerError(
                "use_sde: its noise has no symmetry; expected use_sde=False with model="
                f'"{model}", or model="mlp"'
            )
        super().__init__(observation_space, action_space, lr_schedule, **theirs)  # type: ignore[call-arg]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()  # type: ignore[misc]
        if self.group is not None and self.group.quaternion is not None:
            del data["features_extractor_class"], data["features_extractor_kwargs"]
        names = ("group", "model", "symmetric_critic", "free_rate", "free_penalty")
        return {**data, **{name: getattr(self, name) for name in names}}

    def _layers(self) -> tuple[LayerMaker, SignedGroup]:
        """What makes layers, and the group that they have."""
        assert self.group is not None
        group = self.group
        if self.model == "rpp-trivial":
            group = trivial_group(group.features, len(group.actions[0]), group.quaternion)
        return LayerMaker(group.regular, None if self.model == "emlp" else self.free_rate), group

    def _penalised(self, optimiser: Any, network: nn.Module) -> Any:
        """An optimiser of the same kind with a weight decay of free parts."""
        free = [part for _, each in group_layers(network) for part in each.free_parameters()]
        if not free:
            return optimiser
        ours = {id(each) for each in free}
        settings = dict(optimiser.param_groups[0])
        others = [each for each in settings.pop("params") if id(each) not in ours]
        decay = 2 * self.free_penalty * self.free_rate**2
        return type(optimiser)(
            [
                {**settings, "params": others},
                {**settings, "params": free, "weight_decay": decay},
            ]
        )


def _checked(group: SignedGroup, observations: Any, actions: Any) -> SignedGroup:
    """The group, if spaces are vectors that its maps permute."""
    if not isinstance(actions, spaces.Box) or len(actions.shape) != 1:
        raise CallerError(
            f"actions: expected a vector of numbers, as the maps of group {group.name} permute, "
            f"got {actions}"
        )
    if not isinstance(observations, spaces.Box) or len(observations.shape) != 1:
        raise CallerError(f"observations: expected a vector of numbers, got {observations}")
    size, motors = observations.shape[0], actions.shape[0]
    fits = size == group.observed or (group.quaternion is not None and size > group.observed)
    if not fits or motors != len(group.actions[0]):
        raise CallerError(
            f"group {group.name}: expected maps of {size} observed numbers and {motors} actions, "
            f"as the environment has, got maps of {group.observed} and {len(group.actions[0])}"
        )
    for each in group.action.matrices():
        low, high = (each @ bound for bound in (actions.low, actions.high))
        moved = [np.minimum(low, high), np.maximum(low, high)]
        if not np.allclose(moved, [actions.low, actions.high]):
            raise CallerError(
                f"group {group.name}: expected maps that leave the largest actions where they "
                f"are, got actions from {actions.low} to {actions.high}"
            )
    return group


class _GroupCritic(_GroupPolicy):
    """Critics Q(s, a) of SAC and TD3."""

    def make_critic(self, features_extractor: Any = None) -> Any:
        """Theirs, with networks of the group."""
        critic = super().make_critic(features_extractor)  # type: ignore[misc]
        if self.model == "mlp" or not self.symmetric_critic:
            return critic
        maker, group = self._layers()
        widths, activation = self.critic_kwargs["net_arch"], self.critic_kwargs["activation_fn"]  # type: ignore[attr-defined]
        source = joined([group.observation, group.action])
        for number in range(critic.n_critics):
            own = maker.network(source, still(group.order), widths, activation)
            critic.add_module(f"qf{number}", own)
            critic.q_networks[number] = own
        return critic.to(self.device)  # type: ignore[attr-defined]


class SoftSACPolicy(_GroupCritic, SACPolicy):
    """Actor and critic of SAC with a symmetry; see the module and `_GroupPolicy`."""

    def make_actor(self, features_extractor: Any = None) -> Any:
        """Theirs, with networks of the group."""
        actor = super().make_actor(features_extractor)
        if self.model == "mlp":
            return actor
        maker, group = self._layers()
        actor.latent_pi, last = maker.trunk(group.observation, actor.net_arch, actor.activation_fn)
        actor.mu = maker.linear(last, group.action)
        actor.log_std = maker.linear(last, group.action.unsigned)
        return actor.to(self.device)

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.actor.optimizer = self._penalised(self.actor.optimizer, self.actor)


class SoftTD3Policy(_GroupCritic, TD3Policy):
    """Actor and critic of TD3 with a symmetry; see the module and `_GroupPolicy`."""

    def make_actor(self, features_extractor: Any = None) -> Any:
        """Theirs, with networks of the group."""
        actor = super().make_actor(features_extractor)
        if self.model == "mlp":
            return actor
        maker, group = self._layers()
        parts = maker.network(group.observation, group.action, actor.net_arch, actor.activation_fn)
        actor.mu = nn.Sequential(*parts, nn.Tanh())
        return actor.to(self.device)

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.actor.optimizer = self._penalised(self.actor.optimizer, self.actor)


class SoftPPOPolicy(_GroupPolicy, ActorCriticPolicy):
    """Actor and critic of PPO with a symmetry; see the module and `_GroupPolicy`.

    Their policy has one spread for all states. Those of actions that a hard group takes to each
    other start equal and stay so, since their gradients are averaged. Initial means are scaled by
    0.01, as theirs are.
    """

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        if self.model == "mlp":
            return
        maker, group = self._layers()
        arch = self.net_arch
        widths = [arch.get(part, []) if isinstance(arch, dict) else arch for part in ("pi", "vf")]
        actor, last = maker.trunk(group.observation, widths[0], self.activation_fn)
        self.mlp_extractor.policy_net = actor
        self.action_net = maker.linear(last, group.action)
        self.action_net.scale_(0.01)
        if self.symmetric_critic:
            critic, last = maker.trunk(group.observation, widths[1], self.activation_fn)
            self.mlp_extractor.value_net = critic
            self.value_net = maker.linear(last, still(group.order))
        self.to(self.device)
        if self.model == "emlp":
            average = torch.from_numpy(group.action.unsigned.matrices().mean(0)).float()
            self.log_std.register_hook(lambda gradient: average.to(gradient) @ gradient)
        made = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)
        self.optimizer = self._penalised(made, nn.ModuleList([actor, self.action_net]))
