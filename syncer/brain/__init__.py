"""Decides. Pure: no clock, file, socket, thread, logger or chance; events in, effects out."""
