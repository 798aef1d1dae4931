"""What an LSTM and a GRU differ in, as one record each."""
