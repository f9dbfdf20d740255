"""What each command does, as a short readable story."""
