"""Tests of the island inside ms-swift's Megatron trainer."""
