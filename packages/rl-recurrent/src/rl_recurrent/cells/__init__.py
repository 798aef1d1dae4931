"""What an LSTM and a GRU differ in, as one record each."""

from rl_recurrent.cells.cell import Cell
from rl_recurrent.cells.gru import GRU
from rl_recurrent.cells.lstm import LSTM

CELLS: dict[str, Cell] = {"lstm": LSTM, "gru": GRU}
