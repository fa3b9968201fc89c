"""The rank's half: who it is, its step loop, timers, memory, and virtual ranks."""
