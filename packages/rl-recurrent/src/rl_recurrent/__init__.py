"""LSTM and GRU on flat trajectories, without padding."""

from rl_recurrent import functional
from rl_recurrent.backends.dispatch import Choice, Work, explain_backend
from rl_recurrent.backends.settings import Settings
from rl_recurrent.cells import GRUCell, LSTMCell
from rl_recurrent.modules.gru import GRU, GRUModule
from rl_recurrent.modules.lstm import LSTM, LSTMModule
from rl_recurrent.network.layer_weights import LayerWeights
from rl_recurrent.network.parameters import Network

__all__ = [
    "GRU",
    "LSTM",
    "Choice",
    "GRUCell",
    "GRUModule",
    "LSTMCell",
    "LSTMModule",
    "LayerWeights",
    "Network",
    "Settings",
    "Work",
    "explain_backend",
    "functional",
]
