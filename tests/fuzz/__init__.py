"""Bytes from anywhere: whatever comes in is a message or a refusal, never a crash and never growth."""
