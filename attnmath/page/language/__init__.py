"""The language of a page: from its text to displays, and from LaTeX to trees.

chapter  a chapter's displays with their places, its inline relations, its cells
inline   what a formula among words, and the words, may be made of
cells    what a code cell may do, and the numbers that a caption's cell asserts
syntax   from the LaTeX of a display to statements
nodes    what a display is made of, written anew with definitions put in
letters  the tables of letters
"""
