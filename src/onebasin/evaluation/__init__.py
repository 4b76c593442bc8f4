"""Evaluating posteriors: predictives, profiles and barriers, measures, distances, landscapes."""
