"""From samples to states: metrics, rates, thresholds, load reports, and the detector of an edge."""
