"""The page of each command.

learn.py             the page of `isotropy learn`; findings.py has its sentences
measure.py           of `isotropy measure`; measure_parts.py has its tables and drawings
relax.py, screen.py, profile.py, basis_picture.py    of the other commands
"""
