# SPDX-License-Identifier: MIT
"""``bagua-net bench``: collectives between processes, over this network and over others, in alternation.

The parts, in the order in which a run passes them:

- ``cli``: the options. ``config``: what they mean, as one value that travels to every rank.
- ``sizes``, ``models``: how much to move. ``ops``, ``elements``: what to do with it, and what must come out.
- ``launch``: local ranks as child processes. ``join``: this process as one rank of a larger run.
- ``rank``: the life of a rank. ``transports``: the networks; ``net``, ``gloo``, ``cuda`` are the kinds of them.
- ``measure``: rounds and timing. ``result``: the figures of one row.
- ``report``, ``summary``, ``record``, ``plot``: the same rows as table, sentences, JSON and picture.
"""
