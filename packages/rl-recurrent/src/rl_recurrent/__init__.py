"""LSTM and GRU on flat trajectories, without padding."""

from rl_recurrent import functional
from rl_recurrent.backends.dispatch import BackendChoice, Settings, Work, explain_backend
from rl_recurrent.cell_modules import GRUCell, LSTMCell
from rl_recurrent.cells.cell import LayerWeights
from rl_recurrent.modules import GRUModule, LSTMModule
from rl_recurrent.nets import GRU, LSTM
from rl_recurrent.network import Network

__all__ = [
    "GRU",
    "LSTM",
    "BackendChoice",
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
