"""Since which release a failure is there, and in which it went; begin with `releases.py`."""
