"""What goes to a place and runs there: Python 3.8's syntax, NumPy, and nothing of bisect-trt that is not sent too."""
