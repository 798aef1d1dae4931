"""LSTM and GRU on flat trajectories, without padding."""
