"""LSTM and GRU on flat trajectories, without padding."""

from rl_recurrent import functional
from rl_recurrent.cells import GRUCell, LSTMCell
from rl_recurrent.choose import Choice, Work, explain_backend
from rl_recurrent.gru import GRU, GRUModule
from rl_recurrent.lstm import LSTM, LSTMModule
from rl_recurrent.network import Network
from rl_recurrent.settings import Settings
from rl_recurrent.weights import LayerWeights

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
