"""From a name and an observation space to a network."""

import math

import jax

from jaxmarl_llm.envs.spaces import MultiDiscrete
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.networks.actor_critic import ActorCritic
from jaxmarl_llm.networks.coordinator import Coordinator
from jaxmarl_llm.networks.inputs import ConvolutionInput, DenseInput, FactoredInput, InputLayer
from jaxmarl_llm.settings import check_widths

NETWORKS = ("mlp", "cnn", "gru", "coordinator")
CRITICS = ("observation", "global_state", "attention")
_GRU_SIZE = 64


def build_actor_critic(
    observation_space,
    num_actions: int,
    num_agents: int,
    *,
    network: str = "mlp",
    hidden_sizes: tuple[int, ...] = (64, 64),
    activation: str = "tanh",
    gru_size: int = _GRU_SIZE,
    critic: str = "observation",
    action_critic: bool = False,
    agent_id: bool = False,
    decoder: bool = False,
    memory_size: int = 0,
    memory_tokens: int = 0,
) -> ActorCritic | Coordinator:
    """Builds the network of one policy for an observation space.

    The first layer follows the space: an embedding sum for `MultiDiscrete` (factored) observations, convolutions for
    `network="cnn"`, else a dense layer on the flattened observation.

    Args:
      observation_space: one agent's space, or a pytree of spaces.
      num_actions: A.
      num_agents: N.
      network: `"mlp"`, `"cnn"`, `"gru"` (the first layer, then a gated recurrent unit, then the other layers) or
        `"coordinator"` (attention among the agents, see `networks.Coordinator`).
      hidden_sizes: widths of the hidden layers, at least one; of a coordinator, the width of a token, as often as
        there are attention layers.
      activation: `"tanh"` or `"relu"`; a coordinator and a critic with attention have `"relu"` always.
      gru_size: H of the recurrent unit of `"gru"`.
      critic: `"observation"`, `"global_state"` or `"attention"` (an `AttentionCritic` as wide as the first hidden
        layer), see `ActorCritic`. A coordinator's values come from what the whole team observes: it ignores
        `"global_state"`.
      action_critic: the critic is told the others' actions and values each own action.
      agent_id: tell the networks the agent's index.
      decoder, memory_size, memory_tokens: of a coordinator, see `networks.Coordinator`: the policy goes through the
        agents one after the other; width of a recurrent unit on each agent's token, and number of memory tokens of the
        team, that last through an episode (0 for none).

    Raises:
      UserError: unknown network, critic or activation, no hidden layer, layers of several widths or another critic in a
        coordinator, settings of one network in another, or a CNN for an observation that is no image.
    """
    if critic not in CRITICS:
        raise unknown_name("critic", critic, CRITICS)
    if network not in NETWORKS:
        raise unknown_name("network", network, NETWORKS)
    if activation not in ("tanh", "relu"):
        raise unknown_name("activation", activation, ("tanh", "relu"))
    for name, value in {"decoder": decoder, "memory_size": memory_size, "memory_tokens": memory_tokens}.items():
        if value and network != "coordinator":
            raise UserError(f"{name} is a setting of network 'coordinator', the network is '{network}'")
        if value < 0:
            raise UserError(f"{name} must be at least 0, got {value}")
    if network != "gru" and gru_size != _GRU_SIZE:
        raise UserError(f"gru_size is a setting of network 'gru', the network is '{network}': leave it out")
    check_widths("gru_size", (gru_size,))
    hidden_sizes = check_widths("hidden_sizes", hidden_sizes)
    leaves = jax.tree.leaves(observation_space)
    if network == "cnn":
        if len(leaves) != 1 or len(leaves[0].shape) != 3:
            raise UserError(
                "network 'cnn' needs an observation of shape (height, width, channels), "
                f"this environment gives {[leaf.shape for leaf in leaves]}: use network 'mlp' or 'gru'"
            )
        make_input = InputLayer(ConvolutionInput)
    elif len(leaves) == 1 and isinstance(leaves[0], MultiDiscrete):
        make_input = InputLayer(FactoredInput, (("sizes", leaves[0].sizes),))
    else:
        make_input = InputLayer(DenseInput, (("event_ndims", tuple(len(leaf.shape) for leaf in leaves)),))
    if network == "coordinator":
        if action_critic or critic == "attention":
            raise UserError(
                "network 'coordinator' has its own values, and no critic of actions or with attention: "
                "use network 'mlp', 'cnn' or 'gru'"
            )
        width = hidden_sizes[0]
        if set(hidden_sizes) != {width}:
            raise UserError(
                f"the layers of network 'coordinator' have one width, hidden_sizes={tuple(hidden_sizes)} has several: "
                f"use {(width,) * len(hidden_sizes)}"
            )
        return Coordinator(
            make_input=make_input,
            num_actions=num_actions,
            width=width,
            num_layers=len(hidden_sizes),
            num_heads=math.gcd(width, 4),
            agent_id=agent_id,
            num_agents=num_agents,
            decoder=decoder,
            memory_size=memory_size,
            memory_tokens=memory_tokens,
        )
    return ActorCritic(
        make_input=make_input,
        num_actions=num_actions,
        num_agents=num_agents,
        hidden_sizes=tuple(hidden_sizes),
        activation=activation,
        memory_size=gru_size if network == "gru" else 0,
        critic=critic,
        action_critic=action_critic,
        agent_id=agent_id,
    )
