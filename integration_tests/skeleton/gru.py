"""A recurrent actor and critic: one GRU cell, looped over rows."""

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from skeleton.segments import segment_ends

STATE = "recurrent_state"


class GRUAgent(nn.Module):
    """A GRU cell over observations, under a linear actor and critic; a generator draws actions."""

    def __init__(
        self, observation_size: int, hidden_size: int, num_actions: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.cell = nn.GRUCell(observation_size, hidden_size)
        self.actor, self.critic = nn.Linear(hidden_size, num_actions), nn.Linear(hidden_size, 1)
        nn.init.normal_(self.cell.weight_ih)  # because CartPole's observations are small
        self.generator = generator

    def primer(self) -> TensorDict:
        """Give the recurrent state that an episode starts from."""
        return TensorDict({STATE: torch.zeros(self.cell.hidden_size)}, [])

    @torch.no_grad()
    def forward(self, root: TensorDictBase) -> TensorDictBase:
        """Act on one root, batch size []: the state is always the one stored in it."""
        state = self.cell(root["observation"], root[STATE])
        log_probs = self.actor(state).log_softmax(-1)  # [A]
        action = torch.multinomial(log_probs.exp(), 1, generator=self.generator).squeeze(0)
        root["action"], root["sample_log_prob"] = action, log_probs[action]
        root["next", STATE] = state
        return root

    def unroll(self, rows: TensorDictBase) -> Tensor:
        """Replay rows [N] into states [N, H]; a segment starts from the state in its first row."""
        states: list[Tensor] = []
        starts = True
        for i, ends in enumerate(segment_ends(rows)):
            before = rows[STATE][i] if starts else states[-1]
            states.append(self.cell(rows["observation"][i], before))
            starts = ends
        return torch.stack(states)

    def values(self, rows: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Values before and after each of N rows, both [N, 1].

        After a row comes the next row's value. At the end of a segment the unroll takes one step
        more, on the real next observation.
        """
        states = self.unroll(rows)
        value = self.critic(states)
        next_value = value.roll(-1, 0)
        for i, ends in enumerate(segment_ends(rows)):
            if ends:
                next_value[i] = self.critic(self.cell(rows["next", "observation"][i], states[i]))
        return value, next_value
