"""What the reference run says against each unit in low precision, before anything is probed."""

from bisect_trt.workflows.suspicion.facts import BREAKS, Suspect
from bisect_trt.workflows.suspicion.suspect import first_to_break, suspect

__all__ = ["BREAKS", "Suspect", "first_to_break", "suspect"]
