"""Run mode: arrivals, durations and failures as discrete events around the engine."""
