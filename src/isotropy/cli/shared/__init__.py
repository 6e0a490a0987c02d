"""What the commands share: options, progress, continued runs, and how a command ends."""
