"""Fake islands: the real Island, Session, links and syncer around a trainer whose every value can be
computed by hand."""
