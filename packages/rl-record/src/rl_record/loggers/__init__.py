"""Where numbers, histograms, videos and settings of a run go."""
