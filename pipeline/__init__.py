"""Offline batch pipeline for L1 triage of audio and video recordings."""

__version__ = "0.1.0"
