"""Advice: each rule names something that limits a run, and one remedy."""
