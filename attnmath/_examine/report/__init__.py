"""What was found, and how it is told.

report   the verdict and what it rests on; as text and JSON
display  the same as HTML and as XML, and a line on the screen that says what is being done
"""
